// Logits of tiny models of every architecture against transformers, prefill in every chunking and decode.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>

#include "src/formats/checkpoint.h"
#include "tests/golden/golden_case.h"
#include "tests/model/sequence_runner.h"

namespace mneme {
namespace {

struct Difference {
  double max = 0.0, rms = 0.0;  // NaN when any value is
};

// Rows `rows` of all_logits against the stored rows from `first_stored` on.
Difference difference(std::span<const float> all_logits, std::span<const std::int64_t> rows,
                      std::span<const float> stored, std::size_t vocab) {
  Difference d;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t j = 0; j < vocab; ++j) {
      const double error = std::fabs(all_logits[rows[i] * vocab + j] - double{stored[i * vocab + j]});
      if (!(error <= d.max)) d.max = error;
      d.rms += error * error;
    }
  d.rms = std::sqrt(d.rms / static_cast<double>(rows.size() * vocab));
  return d;
}

void expect_within_twice(const Difference& d, const ErrorLevel& level, const std::string& what) {
  EXPECT_LE(d.max, 2 * level.max) << what;
  EXPECT_LE(d.rms, 2 * level.rms) << what;
}

class Golden : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  ThreadPool threads{2};
  CpuContext context{.pool = &threads};
  GoldenCase golden = read_golden(std::get<0>(GetParam()));
  DType kv_dtype = std::get<1>(GetParam());
  std::string kv = std::string(dtype_name(kv_dtype));
  std::unique_ptr<Model> model = Model::load(Checkpoint::open(golden.folder), {.context = golden.context}, context);
  std::size_t vocab = static_cast<std::size_t>(model->config().vocab);
};

TEST_P(Golden, PrefillInEveryChunking) {
  const std::vector<float> truth = golden.logits("truth.f32");
  ASSERT_EQ(truth.size(), golden.rows.size() * vocab);
  SequenceRunner runner(*model, kv_dtype, context);
  for (const std::size_t chunk :
       {golden.tokens.size(), std::size_t{1}, std::size_t{7}, std::size_t{32}, std::size_t{33}}) {
    SequenceCache cache(runner.pool);
    const std::vector<float> logits = runner.feed(cache, golden.tokens, chunk);
    const std::string what = "chunks of " + std::to_string(chunk);
    expect_within_twice(difference(logits, golden.rows, truth, vocab), golden.plain.at(kv), what);
    // With keys in bf16, the blocked kernel for many rows may round queries and probabilities to bf16 too, as plain.
    const bool exact_products = kv_dtype != DType::kBF16 || chunk == 1;
    if (!golden.sharp.contains(kv) || !exact_products) continue;
    const std::vector<float> truth_kv = golden.logits("truth_kv_" + kv + ".f32");
    ASSERT_EQ(truth_kv.size(), truth.size());
    expect_within_twice(difference(logits, golden.rows, truth_kv, vocab), golden.sharp.at(kv), "sharp, " + what);
  }
}

TEST_P(Golden, DecodeAfterPrefill) {
  const std::vector<float> truth = golden.logits("truth.f32");
  const auto n_decode = static_cast<std::size_t>(golden.n_decode), split = golden.tokens.size() - n_decode;
  SequenceRunner runner(*model, kv_dtype, context);
  SequenceCache cache(runner.pool);
  const std::span<const std::int32_t> tokens(golden.tokens);
  runner.step(cache, tokens.first(split));
  std::vector<float> logits;
  std::vector<std::int64_t> rows;
  for (std::size_t i = 0; i < n_decode; ++i) {
    const std::vector<float> row = runner.step(cache, tokens.subspan(split + i, 1));
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back(static_cast<std::int64_t>(i));
  }
  const std::span<const float> stored = std::span(truth).last(n_decode * vocab);
  EXPECT_LE(difference(logits, rows, stored, vocab).max, 2 * golden.plain.at(kv).max);
}

INSTANTIATE_TEST_SUITE_P(, Golden,
                         testing::Combine(testing::ValuesIn(golden_names()),
                                          testing::Values(DType::kBF16, DType::kF16)),
                         [](const auto& test) {
                           std::string name =
                               std::get<0>(test.param) + "_" + std::string(dtype_name(std::get<1>(test.param)));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace mneme
