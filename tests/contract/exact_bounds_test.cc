// Comparisons at their bounds, and truncated states: cases that random sequences hardly ever reach.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/methods/decode_attention.h"
#include "src/methods/layer_selector.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "src/selection/gate/gate.h"
#include "tests/contract/random_sequence.h"

namespace mneme {
namespace {

constexpr MethodShape kShape{
    .n_layers = kLayers, .n_heads = 4, .n_kv_heads = 2, .head_dim = kHeadDim, .kv_dtype = DType::kBF16};

std::shared_ptr<const Plan> plan_of(const char* method, const char* overrides) {
  Recipe r = make_recipe(method, {.budget = 96, .sink = 0, .recent = 0});
  apply_overrides(overrides, r);
  return compile(r, kShape);
}

class ExactBounds : public ::testing::Test {
 protected:
  std::vector<float> step(Sequence& s, MethodState& method, const std::vector<float>& q, std::int32_t layer = 0) {
    std::vector<float> out(s.width());
    const DecodeRow row{.cache = &s.cache(), .method = &method, .q = q.data(), .out = out.data()};
    attention_.run(layer, std::span(&row, 1), kShape.attention());
    return out;
  }
  // Decode steps with constant queries. Every head's is a unit vector, so that its cosine with itself is exactly 1.
  LayerStats stay_put(const char* overrides) {
    Sequence s(kShape, plan_of("freekv", overrides), Values::kReal, 3);
    std::vector<float> q(s.width());
    for (std::size_t h = 0; h < s.width(); h += kHeadDim) q[h] = 1.0f;
    s.append(200);
    s.close_units(attention_);
    for (int i = 0; i < 30; ++i) {
      s.append(1);
      step(s, *s.method(), q);
    }
    return s.method()->stats().layers[0];
  }

  ThreadPool pool_{2};
  DecodeAttention attention_{{.pool = &pool_, .rounding = Rounding::kFixed}, kRope};
};

std::int64_t sum(const std::vector<std::int64_t>& counts) {
  std::int64_t all = 0;
  for (const std::int64_t n : counts) all += n;
  return all;
}

TEST_F(ExactBounds, AQueryAtTauHasNotMoved) {
  const LayerStats stats = stay_put("unit=page:8,sink=8,recent=16,dense=none,tau=1");
  EXPECT_GT(sum(stats.gate_checks), 0);
  EXPECT_EQ(sum(stats.corrections), 0);
}

// Whatever the other heads of the group say: a cosine of NaN is neither the largest nor the smallest of them.
TEST_F(ExactBounds, AGroupWithAQueryOfNanHasMoved) {
  constexpr std::int32_t kGroup = 3, kDim = 8;
  const std::vector<float> before(kGroup * kDim, 1.0f);
  for (const std::size_t head : {0, 1, 2}) {
    std::vector<float> q = before;
    q[head * kDim] = NAN;
    for (const GatePool pool : {GatePool::kMean, GatePool::kMax, GatePool::kAny})
      EXPECT_TRUE(std::isnan(pooled_cosine(pool, q.data(), before.data(), kGroup, kDim))) << head;
  }
}

TEST_F(ExactBounds, ASelectionThatLacksNothingIsWithinEpsZero) {
  const LayerStats stats = stay_put("unit=page:8,sink=8,recent=16,dense=none,gate=mass,eps=0");
  EXPECT_GT(sum(stats.gate_checks), 0);
  EXPECT_EQ(sum(stats.corrections), 0);
}

// Other tokens up to a length that the state has seen before: nothing of the first ones may remain.
TEST_F(ExactBounds, AStateThatWentBackIsAFreshOne) {
  const std::pair<const char*, const char*> methods[] = {
      {"window", "sink=5,positions=one_angle,prefill=window:16"},
      {"freekv", "unit=page:8,sink=8,recent=16,dense=none,tau=-1"},
      {"freekv", "unit=page:8,sink=8,recent=16,dense=none,tau=0.9"},
      {"freekv", "unit=page:8,sink=8,recent=16,dense=none,gate=mass,eps=0.5"},
      {"louiskv", "unit=page:8,sink=8,recent=16,dense=none,tau=-1"},
  };
  for (const auto& [name, overrides] : methods) {
    const auto plan = plan_of(name, overrides);
    Sequence s(kShape, plan, Values::kReal, 11);
    s.append(150);
    s.close_units(attention_);
    for (int i = 0; i < 10; ++i) {
      s.append(1);
      s.new_queries();
      step(s, *s.method(), s.query(0));
    }
    s.cache().truncate(130);
    s.method()->step_back(130);
    s.append(31);  // one more than before: the step that `ready_for` and `queried_for` were set for
    ASSERT_EQ(s.cache().length(), 161);
    s.new_queries();
    MethodState fresh(plan);
    const std::int64_t checks = sum(s.method()->stats().layers[0].gate_checks);
    EXPECT_EQ(step(s, *s.method(), s.query(0)), step(s, fresh, s.query(0))) << name << " " << overrides;
    EXPECT_EQ(sum(s.method()->stats().layers[0].gate_checks), checks) << "there is no query before to compare with";
  }
}

// Question rows with equal mass: the last four represent the question, whatever number of keys represents a unit.
TEST_F(ExactBounds, OfEqualQuestionRowsTheLastFourCount) {
  Recipe r = make_recipe("actqkv", {.budget = 96, .sink = 8, .recent = 32});
  apply_overrides("unit=page:8,prefill=window:16,match=mean,top=1", r);
  const auto plan = compile(r, kShape);
  MethodState method(plan);
  constexpr std::int32_t kRows = 6;
  method.set_question_span(0, kRows);
  LayerSelector selector({.pool = &pool_, .rounding = Rounding::kFixed});
  const std::size_t width = static_cast<std::size_t>(kShape.n_heads) * kHeadDim;
  std::vector<float> q(kRows * width);
  for (std::size_t i = 0; i < kRows; ++i) q[i * width + i] = 1.0f;
  selector.see_question(method, 0, {.q = q.data(), .stride = static_cast<std::int64_t>(width), .first = 0, .n = kRows});
  std::vector<float> last(width);
  for (std::size_t i = 2; i < kRows; ++i) last[i] = 0.5f;
  EXPECT_EQ(method.layer(0).memory->question, last);
}

}  // namespace
}  // namespace mneme
