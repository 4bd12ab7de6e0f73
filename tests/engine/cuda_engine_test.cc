// The engine on a device. Batch invariance (docs/design/batch-invariance.md): a sequence's logits have the same bits
// alone, beside others, after a shared prefix, and whatever the number of tokens in a step.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/engine/engine.h"
#include "src/formats/checkpoint.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/error_message.h"
#include "tests/model/cuda/cuda_models.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

using Tokens = std::vector<std::int32_t>;
// By position of the token that a row predicts: a hash of the row's bits.
using Rows = std::map<std::int32_t, std::uint64_t>;

struct Method {
  const char *name, *overrides;
};
constexpr Method kMethods[] = {{"full", ""},
                               {"freekv", "tau=0.9"},
                               {"mneme", ""},
                               {"fier", ""},
                               {"quest", ""},
                               {"louiskv", "tau=0.9"},
                               {"freekv", "tau=0.9,index=one_bit,unit=token"},
                               {"window", ""}};

struct Case {
  const char* name = "";
  std::optional<Architecture> architecture{};  // of random weights in bf16; none: the shipped model, Q8_0
  KvResidency store = KvResidency::kDevice;
  KvDtype kv_dtype = KvDtype::kBf16;
};

// Methods are refused beside layers with a sliding window.
std::span<const Method> methods_of(const Case& c) {
  const bool windows = c.architecture && small_config(*c.architecture).sliding_window > 0;
  return std::span(kMethods).first(windows ? 1 : std::size(kMethods));
}

std::unique_ptr<Model> model_of(const Case& s, ThreadPool& threads) {
  const CpuContext cpu{.pool = &threads};
  if (!s.architecture)
    return Model::load(Checkpoint::open(std::string(MNEME_SOURCE_DIR) + "/models/needle-27m-q8_0.gguf"),
                       {.context = 4096}, cpu);
  ModelConfig config = cuda_config(*s.architecture, 8, 2, 64);
  config.max_context = 4096;
  auto checkpoint = std::make_unique<MemoryCheckpoint>(config, DType::kF32);
  checkpoint->fill(7);
  return Model::load(std::move(checkpoint), {}, cpu);
}

class Runner {
 public:
  Runner(const Case& c, std::int32_t max_batched_tokens, std::int32_t max_sequences = 13, bool deterministic = true) {
    EngineOptions options{.device = Device::kCuda,
                          .kv_store = c.store,
                          .context = 4096,
                          .max_sequences = max_sequences,
                          .max_batched_tokens = max_batched_tokens};
    options.deterministic = deterministic;
    options.kv_cache_dtype = c.kv_dtype;
    auto threads = std::make_unique<ThreadPool>(kTestThreads);
    auto model = model_of(c, *threads);
    engine_ = std::make_unique<Engine>(std::move(model), options, std::move(threads));
  }

  std::shared_ptr<const Plan> plan(const Method& m) const {
    if (std::string(m.name) == "full") return nullptr;
    Recipe recipe = make_recipe(m.name, {.budget = 352, .sink = 32, .recent = 64});
    apply_overrides(m.overrides, recipe);
    return compile(recipe, engine_->method_shape());
  }

  // Starts a request; its rows are in rows().at(number) once it has ended.
  void start(int number, const Tokens& prompt, const std::shared_ptr<const Plan>& method, Origin origin = {}) {
    RequestInput input;
    input.prompt.assign(prompt.begin() + origin.n_shared, prompt.end());
    input.max_tokens = 24;
    input.method = method;
    input.on_logits = [this, number](std::int32_t position, std::span<const float> logits) {
      std::uint64_t hash = 0xcbf29ce484222325u;
      for (const float v : logits) hash = (hash ^ std::bit_cast<std::uint32_t>(v)) * 0x100000001b3u;
      rows_[number][position] = hash;
    };
    engine_->start(origin, std::move(input));
  }
  RequestId keep(const Tokens& prompt) {
    RequestInput input;
    input.prompt = prompt;
    input.max_tokens = 0;
    input.keep_sequence = true;
    const RequestId id = engine_->start({}, std::move(input));
    drain();
    return id;
  }
  void steps(int n) {
    for (int i = 0; i < n && !engine_->idle(); ++i) engine_->step();
  }
  void drain() {
    while (!engine_->idle()) engine_->step();
  }
  std::int64_t vocab() const { return engine_->model().config().vocab; }
  const std::map<int, Rows>& rows() const { return rows_; }

 private:
  std::unique_ptr<Engine> engine_;
  std::map<int, Rows> rows_;
};

// Prompts of lengths that hurt, of which the first 600 tokens are the same.
std::vector<Tokens> prompts(std::int64_t vocab) {
  const Tokens common = random_tokens(600, vocab, 5);
  std::vector<Tokens> all;
  for (const int n : {700, 1, 31, 255, 256, 257, 600, 601, 1025, 1300, 900, 1100}) {
    Tokens own = random_tokens(n, vocab, static_cast<std::uint64_t>(n));
    std::copy_n(common.begin(), std::min<std::size_t>(common.size(), own.size() / 2), own.begin());
    all.push_back(std::move(own));
  }
  return all;
}

// Of the rows of a request in company and alone; empty: none.
std::string first_difference(const Rows& company, const Rows& alone) {
  const auto [a, b] = std::mismatch(company.begin(), company.end(), alone.begin(), alone.end());
  if (a == company.end() && b == alone.end()) return "";
  return fmt::format("row {} of {} rows from {} on", std::distance(company.begin(), a), alone.size(),
                     alone.begin()->first);
}

class CudaBatchInvariance : public CudaTest, public testing::WithParamInterface<Case> {};

TEST_P(CudaBatchInvariance, LogitsHaveTheSameBitsInCompany) {
  const Case& c = GetParam();
  const std::span<const Method> methods = methods_of(c);
  Runner alone(c, 256), company(c, 1024);
  const std::vector<Tokens> all = prompts(alone.vocab());
  const int n = static_cast<int>(all.size());
  for (int i = 0; i < n; ++i) {
    const Method& m = methods[static_cast<std::size_t>(i) % methods.size()];
    alone.start(i, all[static_cast<std::size_t>(i)], alone.plan(m));
    alone.drain();
  }
  for (int i = 0; i < n; ++i) {
    const Method& m = methods[static_cast<std::size_t>(i) % methods.size()];
    company.start(i, all[static_cast<std::size_t>(i)], company.plan(m));
    company.steps(i % 4);
  }
  company.drain();
  for (int i = 0; i < n; ++i)
    EXPECT_EQ(first_difference(company.rows().at(i), alone.rows().at(i)), "")
        << "prompt of " << all[static_cast<std::size_t>(i)].size() << " tokens, "
        << methods[static_cast<std::size_t>(i) % methods.size()].name;
}

// One method for all, in one graph.
TEST_P(CudaBatchInvariance, AndInOneGraph) {
  const Case& c = GetParam();
  for (const Method& m : methods_of(c)) {
    SCOPED_TRACE(std::string(m.name) + " " + m.overrides);
    Runner alone(c, 512, 5), company(c, 512, 5);  // GEMMs of at most 8 rows have a kernel of their own
    const std::vector<Tokens> all = prompts(alone.vocab());
    for (const int i : {0, 3, 8, 9, 10}) alone.start(i, all[static_cast<std::size_t>(i)], alone.plan(m)), alone.drain();
    for (const int i : {0, 3, 8, 9, 10}) company.start(i, all[static_cast<std::size_t>(i)], company.plan(m));
    company.drain();
    for (const auto& [i, rows] : alone.rows()) EXPECT_EQ(first_difference(company.rows().at(i), rows), "") << i;
  }
}

TEST_P(CudaBatchInvariance, AndBehindASharedPrefix) {
  const Case& c = GetParam();
  Runner alone(c, 1024), shared(c, 512);
  const std::vector<Tokens> all = prompts(alone.vocab());
  const Tokens prefix(all[9].begin(), all[9].begin() + 640);
  const RequestId kept = shared.keep(prefix);
  int number = 0;
  for (const Method& m : methods_of(c)) {
    for (const int n_shared : {33, 256, 300, 512, 640}) {
      alone.start(number, all[9], alone.plan(m));
      alone.drain();
      shared.start(number, all[9], shared.plan(m), Origin::prefix(kept, n_shared));
      shared.drain();
      EXPECT_EQ(first_difference(shared.rows().at(number), alone.rows().at(number)), "")
          << m.name << ", " << n_shared << " tokens shared";
      ++number;
    }
  }
}

// Without batch invariance. Layers that keep all tokens, as those with a window, have more slots than those that drop.
TEST_P(CudaBatchInvariance, RefusesDropsWhichRunWithoutIt) {
  const Case& c = GetParam();
  for (const char* name : {"snapkv", "h2o", "tova"}) {
    SCOPED_TRACE(name);
    Runner refuses(c, 512), runner(c, 512, 5, false);
    const auto start = [&] { refuses.start(0, {1, 2}, refuses.plan({name, ""})); };
    EXPECT_THAT(error_message(ErrorKind::kOption, start), testing::HasSubstr("drops tokens"));
    const std::vector<Tokens> all = prompts(runner.vocab());
    const RequestId kept = runner.keep(Tokens(all[9].begin(), all[9].begin() + 640));
    for (const int i : {0, 3, 8, 9, 10}) runner.start(i, all[static_cast<std::size_t>(i)], runner.plan({name, ""}));
    runner.drain();
    runner.start(11, all[9], runner.plan({name, ""}), Origin::prefix(kept, 300));
    runner.drain();
    EXPECT_EQ(runner.rows().size(), 6u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaBatchInvariance,
                         testing::Values(Case{"shipped"}, Case{.name = "shipped_host", .store = KvResidency::kHost},
                                         Case{.name = "shipped_int8", .kv_dtype = KvDtype::kInt8},
                                         Case{"llama", Architecture::kLlama}, Case{"qwen3moe", Architecture::kQwen3Moe},
                                         Case{"gpt_oss", Architecture::kGptOss}, Case{"gemma3", Architecture::kGemma3},
                                         Case{"olmo2", Architecture::kOlmo2}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mneme
