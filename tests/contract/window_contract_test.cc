// Contract of windowed prefill on the CPU: the specification's attention, wherever chunks end.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "reference/methods/window_attention_ref.h"
#include "src/base/rng.h"
#include "src/methods/window_attention.h"
#include "src/ops/attention/attention.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/contract/contract_case.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

constexpr std::int32_t kHeadDim = 16;
const RopeTable kRope = RopeTable::make({.theta = 1000.0}, kHeadDim, 4096);

constexpr Method kMethods[] = {
    {"streaming_llm", "prefill=window:32"},
    {"streaming_llm", "prefill=window:7,sink=0"},
    {"streaming_llm", "prefill=window:256,sink=1,dense=0"},
    {"streaming_llm", "prefill=window:32,positions=absolute"},
    {"window", "sink=40,prefill=window:32"},
    {"window", "sink=40,prefill=window:32,positions=one_angle"},
    {"window", "sink=0,prefill=window:64,positions=one_angle,dense=0"},
};

// One layer of a prompt in chunks.
class Prompt {
 public:
  Prompt(const MethodShape& shape, std::shared_ptr<const Plan> plan, std::int32_t length)
      : shape_(shape),
        pool_({1, shape.n_kv_heads, shape.head_dim, shape.kv_dtype}, 4096),
        cache_(pool_),
        method_(plan) {
    cache_.set_key_basis(plan->key_basis);
    Rng rng(17);
    const std::size_t n = length;
    for (auto* v : {&k_, &v_}) v->resize(n * (shape.n_kv_heads * kHeadDim));
    q_.resize(n * width());
    for (auto* v : {&k_, &v_, &q_})
      for (float& x : *v) x = static_cast<float>(rng.normal());
  }

  std::size_t width() const { return shape_.n_heads * kHeadDim; }
  // The next n rows: [n, n_heads * D].
  std::vector<float> read(std::int32_t n, WindowAttention& attention) {
    const std::int32_t first = cache_.length();
    cache_.extend(n);
    for (std::int32_t t = first; t < first + n; ++t)
      for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
        const std::size_t at = (t * shape_.n_kv_heads + m) * kHeadDim;
        store_kv(&k_[at], &v_[at], shape_.attention(), cache_.token(0, m, t));
      }
    std::vector<float> out(n * width());
    const WindowRows rows{.cache = &cache_,
                          .method = &method_,
                          .q = query(first),
                          .q_stride = static_cast<std::int64_t>(width()),
                          .out = reinterpret_cast<std::byte*>(out.data()),
                          .out_stride = static_cast<std::int64_t>(width()),
                          .n_rows = n};
    attention.run(0, std::span(&rows, 1), shape_.attention());
    return out;
  }
  const float* query(std::int32_t t) const { return q_.data() + t * width(); }
  const SequenceCache& cache() const { return cache_; }
  MethodState& method() { return method_; }

 private:
  MethodShape shape_;
  PagePool pool_;
  SequenceCache cache_;
  MethodState method_;
  std::vector<float> k_, v_, q_;
};

class WindowContract : public MethodContract {
 protected:
  MethodShape shape() const {
    MethodShape shape = shape_of(1, kHeadDim);
    shape.kv_dtype = DType::kF16;
    return shape;
  }
  std::shared_ptr<const Plan> plan(std::int32_t budget) const {
    Recipe r = make_recipe(method().name, {.budget = budget});
    apply_overrides(method().overrides, r);
    return compile(r, shape());
  }
  ThreadPool pool_{kTestThreads};
  CpuContext context_{.pool = &pool_, .rounding = Rounding::kFixed};
};

TEST_P(WindowContract, AttendsAsTheReference) {
  for (const std::int32_t budget : {50, 96}) {
    const auto plan = this->plan(budget);
    Prompt prompt(shape(), plan, 300);
    WindowAttention attention(context_, kRope);
    const std::vector<float> out = prompt.read(300, attention);
    std::vector<float> expected(out.size());
    attend_windows_ref(*plan, kRope, 0, prompt.cache(), 0, prompt.query(0), expected.data());
    // Rotated keys are rounded to f16 once more: 2^-11 of scores of up to about 4.
    const float tolerance = plan->key_basis == KeyBasis::kPreRope ? 4e-3f : 2e-5f;
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_LE(std::abs(out[i] - expected[i]), tolerance * (1 + std::abs(expected[i])))
          << "row " << i / prompt.width() << " budget " << budget;
  }
}

TEST_P(WindowContract, ChunksChangeNoBits) {
  const auto plan = this->plan(96);
  const std::int32_t rows = plan->window->rows, length = 5 * rows + 3;
  Prompt whole(shape(), plan, length);
  WindowAttention attention(context_, kRope);
  const std::vector<float> expected = whole.read(length, attention);
  for (const std::vector<std::int32_t>& chunks : {std::vector{rows, 3 * rows, rows, 3},  // whole windows
                                                  std::vector{1, 2 * rows, rows / 2, 2 * rows + 1, length}}) {
    Prompt pieces(shape(), plan, length);
    std::vector<float> actual;
    for (const std::int32_t n : chunks) {
      const auto out = pieces.read(std::min(n, length - pieces.cache().length()), attention);
      actual.insert(actual.end(), out.begin(), out.end());
    }
    EXPECT_EQ(actual, expected) << chunks.size() << " chunks";
    const auto& a = whole.method().stats().layers[0];
    const auto& b = pieces.method().stats().layers[0];
    EXPECT_EQ(a.prefill_tokens, b.prefill_tokens);
    EXPECT_EQ(b.prefill_rows, 2 * length);
  }
}

TEST_P(WindowContract, WithinTheBudgetTheBitsAreThoseOfFull) {
  const auto plan = this->plan(400);
  if (plan->recipe.positions == Positions::kOneAngle) GTEST_SKIP() << "attends all tokens, but not where they are";
  Prompt prompt(shape(), plan, 400);
  WindowAttention attention(context_, kRope);
  const std::vector<float> out = prompt.read(400, attention);
  std::vector<float> expected(out.size());
  for (std::int32_t m = 0; m < 2; ++m) {
    std::vector<KvRun> runs;
    prompt.cache().append_runs(0, m, 0, 400, runs);
    const std::int64_t width = prompt.width();
    const std::int64_t at = m * width / 2;
    const PrefillPart part{.q = prompt.query(0) + at, .q_stride = width, .runs = runs};
    const PrefillHead head{.parts = std::span(&part, 1),
                           .n_rows = 400,
                           .out = reinterpret_cast<std::byte*>(expected.data() + at),
                           .out_stride = width};
    attend_prefill_cpu(std::span(&head, 1), shape().attention(), context_);
  }
  EXPECT_EQ(out, expected);
}

TEST_P(WindowContract, CountsWhatItAttends) {
  const auto plan = this->plan(96);
  Prompt prompt(shape(), plan, 300);
  WindowAttention attention(context_, kRope);
  prompt.read(300, attention);
  const std::int32_t rows = plan->window->rows;
  std::int64_t expected = 0;
  for (std::int32_t p = 0; p < 300; ++p) {
    std::int32_t end = std::min(300, (p / rows + 1) * rows);
    if (p < 96) end = std::min(end, 96);
    expected += 2 * static_cast<std::int64_t>(window_tokens(*plan, 0, p, p / rows * rows, end, {}).size());
  }
  EXPECT_EQ(prompt.method().stats().layers[0].prefill_tokens, expected);
}

INSTANTIATE_TEST_SUITE_P(AllRecipes, WindowContract, with_groups(kMethods), case_name);

}  // namespace
}  // namespace mneme
