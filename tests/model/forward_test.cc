// Batches, forks and memory of the forward pass. tests/golden checks the values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tests/model/sequence_runner.h"
#include "tests/model/test_models.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

// Schedule of one sequence: chunk sizes, one per step; 0: none.
using Schedule = std::vector<std::int32_t>;

class ForwardTest : public testing::TestWithParam<Architecture> {
 protected:
  ThreadPool threads{kTestThreads};
  CpuContext fixed{.pool = &threads, .rounding = Rounding::kFixed};
  std::unique_ptr<Model> model = Model::random(config(), DType::kBF16, {}, 11, fixed);

  static ModelConfig config() {
    ModelConfig c = small_config(GetParam());
    if (GetParam() == Architecture::kMistral) c.sliding_window = 20;
    return c;
  }
};

// Runs all schedules in one batch a step; logits of each sequence's last row of every step it takes part in.
std::vector<std::vector<float>> run_together(SequenceRunner& runner,
                                             const std::vector<std::vector<std::int32_t>>& tokens,
                                             const std::vector<Schedule>& schedules) {
  const std::size_t n = tokens.size(), vocab = runner.model.config().vocab;
  std::vector<SequenceCache> caches;
  for (std::size_t s = 0; s < n; ++s) caches.emplace_back(runner.pool);
  std::vector<std::vector<float>> logits(n);
  for (std::size_t step = 0; step < schedules[0].size(); ++step) {
    std::vector<std::int32_t> batch;
    std::vector<SequenceRows> rows;
    for (std::size_t s = 0; s < n; ++s) {
      const std::int32_t count = schedules[s][step], from = caches[s].length();
      if (count == 0) continue;
      batch.insert(batch.end(), tokens[s].begin() + from, tokens[s].begin() + from + count);
      caches[s].extend(count);
      rows.push_back({.cache = &caches[s], .n_rows = count, .want_logits = true});
    }
    std::vector<float> all;
    SequenceRunner::append(runner.forward.run({.tokens = batch, .sequences = rows}), all);
    std::size_t at = 0;
    for (std::size_t s = 0; s < n; ++s) {
      if (schedules[s][step] == 0) continue;
      logits[s].insert(logits[s].end(), all.begin() + static_cast<std::ptrdiff_t>(at * vocab),
                       all.begin() + static_cast<std::ptrdiff_t>((at + 1) * vocab));
      ++at;
    }
  }
  return logits;
}

TEST_P(ForwardTest, RaggedBatchGivesTheBitsOfSingleRuns) {
  const std::vector<Schedule> schedules = {
      {33, 1, 1, 7, 0, 1}, {1, 1, 1, 1, 1, 1}, {0, 64, 31, 1, 1, 1}, {0, 0, 2, 33, 32, 1}, {5, 0, 0, 0, 70, 1}};
  std::vector<std::vector<std::int32_t>> tokens;
  for (std::uint64_t s = 0; s < schedules.size(); ++s) tokens.push_back(random_tokens(128, 50, 100 + s));
  SequenceRunner runner(*model, DType::kBF16, fixed);
  const auto together = run_together(runner, tokens, schedules);
  for (std::size_t s = 0; s < schedules.size(); ++s) {
    const auto alone = run_together(runner, {tokens[s]}, {schedules[s]});
    EXPECT_EQ(together[s], alone[0]) << "sequence " << s;
  }
}

// Chunks of one row, chunks that end inside a tile of keys, and windows that begin there.
TEST_P(ForwardTest, ChunksOfAPromptChangeNoBits) {
  const std::vector<std::int32_t> tokens = random_tokens(150, 50, 12);
  for (const DType kv : {DType::kBF16, DType::kF16, DType::kInt8}) {
    SequenceRunner runner(*model, kv, fixed);
    SequenceCache whole(runner.pool);
    const std::vector<float> expected = runner.feed(whole, tokens, tokens.size());
    for (const std::size_t chunk : {1, 7, 37, 64, 149}) {
      SequenceCache cache(runner.pool);
      EXPECT_EQ(runner.feed(cache, tokens, chunk), expected) << dtype_name(kv) << ", chunks of " << chunk;
    }
  }
}

// Where tiles may follow the batch, rows may differ by at most the rounding of bf16 activations.
TEST_P(ForwardTest, FastRoundingDiffersByRoundingAlone) {
  const CpuContext fast{.pool = &threads, .rounding = Rounding::kFast};
  const std::vector<std::int32_t> tokens = random_tokens(100, 50, 5);
  SequenceRunner exact(*model, DType::kBF16, fixed), quick(*model, DType::kBF16, fast);
  SequenceCache a(exact.pool), b(quick.pool);
  const std::vector<float> x = exact.feed(a, tokens, 1), y = quick.feed(b, tokens, 100);
  double error = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(x[i] - double{y[i]}, 2);
    size += std::pow(double{x[i]}, 2);
  }
  EXPECT_LE(std::sqrt(error / size), 0x1.0p-7);
}

TEST_P(ForwardTest, AForkGivesWhatAFreshSequenceGives) {
  const std::vector<std::int32_t> prompt =
      random_tokens(45, 50, 6);  // its last page is partly filled, so both writers copy it
  SequenceRunner runner(*model, DType::kF16, fixed);
  {
    SequenceCache trunk(runner.pool);
    runner.step(trunk, prompt);
    std::vector<SequenceCache> forks;
    for (int i = 0; i < 2; ++i) forks.push_back(trunk.fork());
    std::vector<std::vector<float>> by_fork(2);
    for (int step = 0; step < 30; ++step)  // turn about, so that one overwriting the other's page would show
      for (std::size_t f = 0; f < 2; ++f) {
        const std::int32_t token = static_cast<std::int32_t>((static_cast<std::size_t>(step) * 7 + f * 13) % 50);
        by_fork[f] = runner.step(forks[f], std::span(&token, 1));
      }
    for (std::size_t f = 0; f < 2; ++f) {
      SequenceCache fresh(runner.pool);
      runner.step(fresh, prompt);
      std::vector<float> logits;
      for (int step = 0; step < 30; ++step) {
        const std::int32_t token = static_cast<std::int32_t>((static_cast<std::size_t>(step) * 7 + f * 13) % 50);
        logits = runner.step(fresh, std::span(&token, 1));
      }
      EXPECT_EQ(logits, by_fork[f]) << "fork " << f;
    }
    EXPECT_NE(by_fork[0], by_fork[1]);
  }
  EXPECT_EQ(runner.pool.n_used(), 0);
}

TEST_P(ForwardTest, OnlyWantedRowsHaveLogits) {
  SequenceRunner runner(*model, DType::kBF16, fixed);
  const std::vector<std::int32_t> tokens = random_tokens(60, 50, 8);
  std::vector<SequenceCache> caches;
  for (int s = 0; s < 3; ++s) caches.emplace_back(runner.pool);
  std::vector<SequenceRows> rows;
  for (std::size_t s = 0; s < 3; ++s) {
    caches[s].extend(20);
    rows.push_back({.cache = &caches[s], .n_rows = 20, .want_logits = s != 1});
  }
  std::vector<float> logits;
  const ConstTensorView view = runner.forward.run({.tokens = tokens, .sequences = rows});
  ASSERT_EQ(view.dim(0), 2);
  SequenceRunner::append(view, logits);
  SequenceCache alone(runner.pool);
  const std::vector<float> last = runner.step(alone, std::span(tokens).subspan(40, 20));
  EXPECT_EQ(std::vector<float>(logits.begin() + 50, logits.end()), last);
  for (SequenceRows& r : rows) r = {.cache = r.cache, .n_rows = 1, .want_logits = false};
  for (SequenceCache& c : caches) c.extend(1);
  EXPECT_EQ(runner.forward.run({.tokens = std::span(tokens).first(3), .sequences = rows}).dim(0), 0);
  EXPECT_EQ(runner.forward.run({}).dim(0), 0);
}

TEST_P(ForwardTest, ActivationsGrowToTheLargestBatchAndStay) {
  SequenceRunner runner(*model, DType::kBF16, fixed);
  SequenceCache cache(runner.pool);
  const std::vector<std::int32_t> tokens = random_tokens(200, 50, 9);
  runner.step(cache, std::span(tokens).first(64));
  const std::size_t grown = runner.forward.activation_bytes();
  EXPECT_GT(grown, 64u * 64u * sizeof(float));
  cache.clear();
  for (int i = 0; i < 3; ++i) {
    runner.step(cache, std::span(tokens).subspan(0, 31));
    runner.step(cache, std::span(tokens).subspan(31, 32));
    cache.clear();
    runner.step(cache, std::span(tokens).first(64));
    EXPECT_EQ(runner.forward.activation_bytes(), grown);
    cache.clear();
  }
}

// Padding of the embedding and holes of the vocabulary: -inf in every row, and every other logit as it was.
TEST(Forward, LogitsOfIdsWithoutATokenAreImpossible) {
  ThreadPool threads{kTestThreads};
  const CpuContext context{.pool = &threads, .rounding = Rounding::kFixed};
  std::vector<float> logits[2];
  for (const bool padded : {false, true}) {
    auto checkpoint = std::make_unique<MemoryCheckpoint>(small_config(), DType::kF32);
    checkpoint->fill(3);
    if (padded) checkpoint->pad(4);
    const auto model = Model::load(std::move(checkpoint), {}, context);
    SequenceRunner runner(*model, DType::kBF16, context);
    SequenceCache cache(runner.pool);
    const std::vector<std::int32_t> tokens = random_tokens(20, 50, 1);
    logits[padded] = runner.feed(cache, std::span(tokens).first(19), 7);
    const std::vector<float> last = runner.step(cache, std::span(tokens).last(1));
    logits[padded].insert(logits[padded].end(), last.begin(), last.end());
  }
  ASSERT_EQ(logits[1].size(), 20u * 50u);
  for (std::size_t i = 0; i < logits[1].size(); ++i)
    EXPECT_EQ(logits[1][i], i % 50 < 46 ? logits[0][i] : -std::numeric_limits<float>::infinity()) << i;
}

INSTANTIATE_TEST_SUITE_P(, ForwardTest, testing::ValuesIn(all_architectures()), [](const auto& test) {
  std::string name(architecture_name(test.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace mneme
