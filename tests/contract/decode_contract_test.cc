// Contract of every recipe on the CPU: what is attended, how many tokens, by which rule, and that the selection is the
// reference's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "reference/methods/decode_attention_ref.h"
#include "reference/methods/summary_scores_ref.h"
#include "src/base/size32.h"
#include "src/methods/decode_attention.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/contract/contract_case.h"
#include "tests/contract/random_sequence.h"
#include "tests/sanitized.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

// Every recipe, and combinations beyond the papers. Budgets are small, so that a few hundred tokens exercise
// everything.
constexpr Method kMethods[] = {
    {"full", ""},
    {"window", ""},
    {"window", "sink=5,positions=one_angle,prefill=window:16"},
    {"window", "sink=32,positions=one_angle,prefill=window:16,dense=1"},
    {"streaming_llm", "sink=4"},
    {"streaming_llm", "sink=1,positions=absolute,dense=2"},
    {"random", "unit=page:8,recent=16,sink=8"},
    {"oracle", "sink=3,recent=5"},
    {"oracle", "unit=page:16,sink=16,recent=16"},
    {"oracle", "pool=none,sink=0,recent=0"},
    {"quest", "dense=0"},
    {"quest", "pool=none,dense=none"},
    {"quest", "unit=page:8,pool=meanS,alpha=1"},
    {"quest", "unit=page:1,recent=0"},
    {"freekv", "unit=page:8,sink=8,recent=16"},
    {"freekv", "unit=page:8,sink=8,recent=16,tau=-1"},
    {"freekv", "unit=page:8,sink=8,recent=16,tau=2"},
    {"freekv", "unit=page:8,sink=8,recent=16,tau=0.9,gate_pool=max"},
    {"freekv", "unit=page:8,sink=8,recent=16,tau=0.5,gate_pool=any,pool=maxS"},
    {"freekv", "unit=page:8,sink=8,recent=16,pool=maxQ"},
    {"freekv", "unit=page:8,sink=8,recent=16,pool=meanQ,dense=none"},
    {"freekv", "unit=page:8,sink=8,recent=16,pool=maxQK"},
    {"freekv", "unit=page:8,sink=8,recent=16,pool=meanQK"},
    {"freekv", "unit=page:8,sink=8,recent=16,pool=none"},
    {"freekv", "unit=page:8,sink=8,recent=16,gate=mass,dense=none"},
    {"freekv", "unit=page:8,sink=8,recent=16,gate=mass,eps=0.2,pool=maxS"},
    {"freekv", "unit=page:8,sink=8,recent=16,gate=mass,eps=0.01,pool=meanQK,alpha=1"},
    {"freekv", "unit=page:8,sink=8,recent=16,gate=mass,eps=0.4,pool=maxQK"},
    {"freekv", "unit=page:8,sink=8,recent=16,gate=mass,eps=0.1,pool=none"},
    {"freekv", "unit=page:8,sink=8,recent=16,gate=mass,eps=-1"},
    {"freekv", "unit=page:8,sink=8,recent=16,gate=mass,eps=1"},
    {"freekv", "index=keys,unit=token,sink=2,recent=7,gate=mass,eps=0.1"},
    {"freekv", "index=one_bit,unit=token,sink=0,recent=0,gate=mass,eps=0.2"},
    {"freekv", "index=one_bit,unit=token,sink=0,recent=0"},
    {"freekv", "index=keys,unit=token,sink=2,recent=7"},
    {"freekv", "unit=page:8,sink=8,recent=16,schedule=boundary,tau=0.7"},
    {"freekv", "unit=page:8,sink=8,recent=16,schedule=boundary,tau=0.8,reference=last_retrieval,max_reuse=3"},
    {"freekv", "unit=page:16,sink=16,recent=16,schedule=boundary,tau=-1,max_reuse=0,pool=none"},
    {"freekv", "index=keys,unit=token,sink=2,recent=7,schedule=boundary,tau=0.75,gate_pool=any"},
    {"fier", "schedule=boundary,tau=0.75,dense=none"},
    {"louiskv", "unit=cluster:4,block=64,sink=4,recent=24,segment=4-16,tau=0.8"},
    {"louiskv",
     "unit=cluster:8,metric=distance,sink=3,recent=20,segment=2-7,tau=0.85,reference=last_retrieval,max_reuse=3,dense="
     "none"},
    {"louiskv", "unit=cluster:5,sink=0,recent=16,segment=1-16,tau=-1,pool=none,order=unit,dense=none"},
    {"louiskv", "unit=cluster:4,index=box,sink=4,recent=24,segment=4-16,schedule=every_step"},
    {"louiskv", "unit=page:8,sink=8,recent=16,tau=0.8"},
    {"louiskv", "unit=cluster:4,by_size=yes,sink=4,recent=24,segment=4-16,tau=0.8"},
    {"random", "unit=cluster:4,sink=4,recent=24,segment=4-16"},
    {"fier", "dense=none"},
    {"fier", "levels=meanabs,dense=none,sink=4,recent=10"},
    {"fier", "pool=none,dense=0"},
    {"fier", "unit=page:16,dense=none"},
    {"fier", "unit=page:8,pool=maxQK,dense=none"},
};

// Blocks beyond the seed papers', with two sizes of group.
constexpr Method kMoreMethods[] = {
    {"mneme", "unit=page:8,sink=8,recent=16,dense=1"},
    {"mneme", "unit=page:8,sink=8,recent=16,index=centroids:2,domain=attention,eps=0.1"},
    {"mneme", "unit=page:8,sink=8,recent=16,index=sketch:4,schedule=every_step,domain=candidates,pool=maxQK"},
    {"mneme", "unit=page:8,sink=8,recent=16,index=sketch:4,schedule=every_step"},
    {"mneme", "unit=page:8,sink=8,recent=16,index=moments,gate=cosine,domain=candidates,pool=meanQ"},
    {"mneme", "unit=token,sink=3,recent=0,index=sketch:6,schedule=every_step,domain=attention"},
    {"mneme", "unit=page:16,sink=16,recent=16,index=centroids:16,pool=none,domain=attention,eps=0.3,dense=none"},
    {"oracle", "sink=3,recent=5,domain=attention"},
    {"freekv", "unit=page:8,sink=8,recent=16,gate=mass,eps=0.2,eps_of=attended,pool=meanQK"},
    {"quest", "unit=page:8,hold=2,dense=none"},
    {"quest", "unit=page:8,sink=8,recent=16,index=box,pool=meanQK,select=layer,hold=1,dense=0"},
    {"quest", "unit=page:8,pool=meanS,select=layer,dense=none"},
    {"quest", "unit=page:8,pool=none,cutoff=top_p:0.85,dense=none"},
    {"oracle", "sink=3,recent=5,cutoff=top_p:0.5"},
    {"freekv", "unit=page:8,sink=8,recent=16,cutoff=top_p:0.9"},
    {"fier", "open_group=score,dense=none"},
    {"clusterkv", "unit=cluster:4,block=64,sink=4,recent=24,segment=12-12,answer=clusters,dense=none"},
};

Recipe recipe_of(const Method& m, std::int32_t budget) {
  Recipe r = make_recipe(m.name, {.budget = budget, .sink = 0, .recent = 0});
  apply_overrides(m.overrides, r);
  return r;
}

class DecodeContract : public MethodContract {
 protected:
  MethodShape shape() const { return shape_of(kLayers, kHeadDim); }
  std::shared_ptr<const Plan> plan(std::int32_t budget) const { return compile(recipe_of(method(), budget), shape()); }
  ThreadPool pool_{kTestThreads};
  CpuContext context_{.pool = &pool_, .rounding = Rounding::kFixed};
};

void expect_lawful_units(const Plan& plan, const MethodState& method, std::int32_t l, std::int32_t length) {
  const MethodState::Layer& layer = method.layer(l);
  for (std::size_t s = 0; s < layer.attended.size(); ++s) {
    const auto& units = layer.attended[s];
    const auto kv_head = static_cast<std::int32_t>(s) * plan.shape.n_kv_heads / plan.selection_heads();
    const Region r = method.region(l, kv_head, length);
    if (!plan.lists) {
      ASSERT_EQ(size32(units), r.n_select);
    }
    ASSERT_TRUE(std::is_sorted(units.begin(), units.end(), std::less_equal<>())) << "ascending and unique";
    const std::vector<std::int32_t> tokens = attended_tokens(method, l, static_cast<std::int32_t>(s), length);
    const std::int32_t most = r.sink + r.select_tokens + length - r.recent_from;
    if (method.keeps_tokens(l))
      ASSERT_LE(size32(tokens), most);
    else
      ASSERT_EQ(size32(tokens), most);
    if (!units.empty()) {
      EXPECT_GE(units.front(), r.first_unit);
      EXPECT_LT(units.back(), r.last_unit);
    }
  }
}

// The selection is the reference's, except for units whose score is within rounding of the last one taken.
void expect_same_selection(const ReferenceHead& expected, const std::vector<std::int32_t>& actual, double tolerance) {
  if (expected.units == actual) return;
  std::vector<std::int32_t> odd;
  std::set_symmetric_difference(expected.units.begin(), expected.units.end(), actual.begin(), actual.end(),
                                std::back_inserter(odd));
  double kth = INFINITY;
  const auto score = [&](std::int32_t u) { return expected.unit_scores[u - expected.first_unit]; };
  for (std::int32_t u : expected.units) kth = std::min(kth, score(u));
  for (std::int32_t u : odd)
    EXPECT_LE(std::abs(score(u) - kth), tolerance * (1.0 + std::abs(kth)))
        << "unit " << u << " of " << expected.unit_scores.size();
}

TEST_P(DecodeContract, SelectsAndAttendsAsTheReference) {
  const auto plan = this->plan(96);
  for (const Values values : {Values::kSmallIntegers, Values::kReal}) {
    Sequence seq(shape(), plan, values, 7);
    DecodeAttention attention(context_, kRope);
    std::vector<ReferenceLayer> reference;
    for (std::int32_t l = 0; l < kLayers; ++l) reference.emplace_back(plan, l, kRope);
    seq.append(83);  // a prompt below the budget, that ends inside a page
    seq.close_units(attention);
    // Raw scores of small integers are exact in f32; logarithms and means over groups of five are not.
    const bool means = plan->selection.scores.pool == Pool::kMeanQ;
    const bool exact = values == Values::kSmallIntegers && !means &&
                       (!pools_scores(plan->selection.scores.pool) || plan->selection.scores.pool == Pool::kMaxQk) &&
                       plan->recipe.decode && !std::holds_alternative<OneBit>(plan->recipe.decode->index) &&
                       !std::holds_alternative<Centroid>(plan->recipe.decode->index) && !selects_by_summary(*plan) &&
                       !(std::holds_alternative<RawKeys>(plan->recipe.decode->index) && plan->rules.unit_tokens > 1);
    const bool one_bit = plan->recipe.decode && std::holds_alternative<OneBit>(plan->recipe.decode->index);
    const double tolerance = exact ? 0.0 : one_bit ? 1e-3 : 1e-5;  // one_bit.h: queries in 15 bits
    // Keys rotated for attention are rounded once more.
    const float rounding = shape().kv_dtype == DType::kBF16 ? 0x1.0p-6f : 0x1.0p-9f;
    const float error = plan->key_basis == KeyBasis::kPreRope ? rounding : 2e-5f;
    std::vector<float> out(seq.width()), expected(seq.width());
    constexpr int kSteps = kSanitized ? 12 : 24;
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps / 2) {  // another turn
        seq.append(70);
        seq.close_units(attention);
      }
      seq.append(1);
      seq.new_queries();
      for (std::int32_t l = 0; l < kLayers; ++l) {
        const DecodeRow row{.cache = &seq.cache(), .method = seq.method(), .q = seq.query(l).data(), .out = out.data()};
        attention.run(l, std::span(&row, 1), shape().attention());
        const bool random = plan->recipe.decode && std::holds_alternative<RandomScore>(plan->recipe.decode->score);
        const std::int32_t n = seq.cache().length();
        const bool sparse = !plan->dense_layer(l) && !region_at(plan->rules, n).everything && plan->selects();
        if (sparse) expect_lawful_units(*plan, *seq.method(), l, n);
        if (random) continue;  // the reference has no random numbers
        const auto heads = reference[l].step(seq.cache(), seq.query(l).data(), expected.data());
        bool same = true;
        if (sparse)
          for (std::size_t s = 0; s < heads.size(); ++s) {
            const auto& units = seq.method()->layer(l).attended[s];
            expect_same_selection(heads[s], units, tolerance);
            same = same && attended_tokens(*seq.method(), l, static_cast<std::int32_t>(s), n) == heads[s].tokens;
          }
        ASSERT_FALSE(HasFailure()) << "step " << step << " layer " << l << " N " << n;
        if (!same) continue;
        for (std::size_t i = 0; i < out.size(); ++i)
          ASSERT_LE(std::abs(out[i] - expected[i]), error * (1 + std::abs(expected[i])))
              << "step " << step << " layer " << l;
      }
    }
  }
}

TEST_P(DecodeContract, WithinTheBudgetTheBitsAreThoseOfFull) {
  const auto plan = this->plan(200);
  if (plan->recipe.positions == Positions::kOneAngle) GTEST_SKIP() << "attends all tokens, but not where they are";
  const auto full = compile(make_recipe("full", {}), shape());
  Sequence a(shape(), plan, Values::kReal, 3), b(shape(), full, Values::kReal, 3),
      c(shape(), nullptr, Values::kReal, 3);
  DecodeAttention attention(context_, kRope);
  std::vector<float> out_a(a.width()), out_b(a.width()), out_c(a.width());
  for (Sequence* s : {&a, &b, &c}) s->append(150);
  for (int step = 0; step < 50; ++step)
    for (Sequence* s : {&a, &b, &c}) {
      s->append(1);
      s->new_queries();
      if (s != &c) continue;
      for (std::int32_t l = 0; l < kLayers; ++l) {
        const DecodeRow rows[] = {
            {.cache = &a.cache(), .method = a.method(), .q = a.query(l).data(), .out = out_a.data()},
            {.cache = &b.cache(), .method = b.method(), .q = b.query(l).data(), .out = out_b.data()},
            {.cache = &c.cache(), .q = c.query(l).data(), .out = out_c.data()}};
        attention.run(l, rows, shape().attention());
        ASSERT_EQ(out_a, out_b) << "N " << a.cache().length();
        ASSERT_EQ(out_a, out_c);
      }
    }
  EXPECT_EQ(a.cache().length(), 200);
}

TEST_P(DecodeContract, AForkGoesOnAsItsOriginalAndAsAFreshSequence) {
  const auto plan = this->plan(96);
  Sequence a(shape(), plan, Values::kReal, 5), b(shape(), plan, Values::kReal, 5);
  DecodeAttention attention(context_, kRope);
  const auto step = [&](Sequence& s) {
    s.append(1);
    s.new_queries();
    std::vector<float> all;
    for (std::int32_t l = 0; l < kLayers; ++l) {
      std::vector<float> out(s.width());
      const DecodeRow row{.cache = &s.cache(), .method = s.method(), .q = s.query(l).data(), .out = out.data()};
      attention.run(l, std::span(&row, 1), shape().attention());
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  };
  for (Sequence* s : {&a, &b}) s->append(120);
  a.close_units(attention);  // b builds its index lazily, at its first step: the same
  for (int i = 0; i < 9; ++i) ASSERT_EQ(step(a), step(b));
  // b's method is replaced by a fork of a's: nothing may change, and the fork must not affect a.
  b.set_method(std::make_unique<MethodState>(*a.method()));
  for (int i = 0; i < 40; ++i) ASSERT_EQ(step(a), step(b)) << i;
  // Independent after the fork: a continues alone, then b catches up.
  b.set_method(std::make_unique<MethodState>(*a.method()));
  std::vector<std::vector<float>> first_fork;
  for (int i = 0; i < 40; ++i) first_fork.push_back(step(a));
  for (int i = 0; i < 40; ++i) ASSERT_EQ(first_fork[i], step(b)) << i;
}

TEST_P(DecodeContract, OthersInTheBatchChangeNothing) {
  const auto plan = this->plan(96);
  Sequence alone(shape(), plan, Values::kReal, 21), together(shape(), plan, Values::kReal, 21);
  Sequence other(shape(), compile(make_recipe("full", {}), shape()), Values::kReal, 22);
  Sequence third(shape(), plan, Values::kReal, 23);
  DecodeAttention one(context_, kRope), batch(context_, kRope);
  for (Sequence* s : {&alone, &together}) s->append(101);
  other.append(333);
  third.append(40);
  std::vector<float> a(alone.width()), b(a), c(a), d(a);
  for (int step = 0; step < 30; ++step) {
    for (Sequence* s : {&alone, &together, &other, &third}) {
      s->append(1);
      s->new_queries();
    }
    for (std::int32_t l = 0; l < kLayers; ++l) {
      const DecodeRow row{
          .cache = &alone.cache(), .method = alone.method(), .q = alone.query(l).data(), .out = a.data()};
      one.run(l, std::span(&row, 1), shape().attention());
      const DecodeRow rows[] = {
          {.cache = &other.cache(), .method = other.method(), .q = other.query(l).data(), .out = c.data()},
          {.cache = &together.cache(), .method = together.method(), .q = together.query(l).data(), .out = b.data()},
          {.cache = &third.cache(), .method = third.method(), .q = third.query(l).data(), .out = d.data()}};
      batch.run(l, rows, shape().attention());
      ASSERT_EQ(a, b) << "step " << step;
    }
  }
}

TEST_P(DecodeContract, AchievedBudgetAndDeclaredMemory) {
  const auto plan = this->plan(96);
  Sequence s(shape(), plan, Values::kReal, 9);
  DecodeAttention attention(context_, kRope);
  s.append(700);
  s.close_units(attention);
  std::vector<float> out(s.width());
  for (int step = 0; step < 70; ++step) {
    s.append(1);
    s.new_queries();
    for (std::int32_t l = 0; l < kLayers; ++l) {
      const DecodeRow row{.cache = &s.cache(), .method = s.method(), .q = s.query(l).data(), .out = out.data()};
      attention.run(l, std::span(&row, 1), shape().attention());
    }
  }
  std::int64_t n_compressed = 0;
  for (std::int32_t l = 0; l < kLayers; ++l) {
    const LayerStats& stats = s.method()->stats().layers[l];
    EXPECT_EQ(stats.steps, 70);
    const double achieved = static_cast<double>(stats.attended_tokens) / static_cast<double>(stats.attended_heads);
    if (plan->dense_layer(l)) {
      EXPECT_EQ(stats.sparse_steps, 0);
      EXPECT_GT(achieved, 700.0);
      continue;
    }
    ++n_compressed;
    EXPECT_EQ(stats.sparse_steps, 70);
    EXPECT_LE(achieved, 96.0);
    if (s.method()->keeps_tokens(l)) {
      EXPECT_GE(achieved, 1.0);
    } else if (plan->rules.unit_tokens == 1) {
      EXPECT_EQ(achieved, 96.0);
    } else {
      EXPECT_GT(achieved, 96.0 - 2 * std::max(plan->rules.unit_tokens, plan->rules.entry_tokens));
    }
    if (plan->selects()) {
      EXPECT_EQ(stats.selections + stats.reused, 70 * plan->selection_heads());
    }
    if (plan->mass_gate()) {  // all selections but the first are gated
      ASSERT_EQ(stats.gate_checks.size(), static_cast<std::size_t>(plan->selection_heads()));
      std::int64_t corrections = 0;
      for (const std::int64_t n : stats.gate_checks) EXPECT_EQ(n, 69);
      for (const std::int64_t n : stats.corrections) corrections += n;
      EXPECT_EQ(stats.selections, plan->selection_heads() + corrections);
      const float eps = plan->selection.gate.eps;
      EXPECT_TRUE(eps >= 0 || stats.reused == 0);
      EXPECT_TRUE(eps < 1 || corrections == 0);
    }
  }
  if (plan->lists) {
    std::size_t declared = 0, copies = 0;
    const auto chunks = [](std::int32_t n) { return static_cast<std::size_t>((n + 255) / 256) * 256; };
    for (std::int32_t l = 0; l < kLayers; ++l)
      for (const UnitTable& table : s.method()->layer(l).tables) {
        declared +=
            chunks(table.size()) * (plan->index->entry_bytes(shape().attention()) + 4) + chunks(table.n_tokens()) * 4;
        copies += plan->lists->copy ? chunks(table.n_tokens()) * shape().attention().token_bytes() : 0;
      }
    EXPECT_EQ(s.method()->index_bytes(), declared);
    EXPECT_EQ(s.method()->copy_bytes(), copies);
    return;
  }
  // Entries are in chunks of 256: memory used is what is declared, rounded up to a chunk.
  const auto e = plan->selects() ? plan->index->entry_tokens() : 1;
  const double declared = plan->index_bytes_per_token() * std::ceil(770.0 / e / EntryStore::kChunkEntries) *
                          EntryStore::kChunkEntries * e * 2.0 * static_cast<double>(n_compressed);
  EXPECT_EQ(static_cast<double>(s.method()->index_bytes()), declared);
}

// Equal keys everywhere: the largest positions win on every path.
TEST_P(DecodeContract, EqualScoresTakeTheLargerPosition) {
  const auto plan = this->plan(96);
  // Equal keys are one cluster; what is taken of it is in boundary_contract_test.cc.
  if (!plan->selects() || plan->lists || std::holds_alternative<RandomScore>(plan->recipe.decode->score))
    GTEST_SKIP() << "selects nothing, at random, or lists";
  Sequence s(shape(), plan, Values::kReal, 1);
  DecodeAttention attention(context_, kRope);
  s.cache().extend(300);
  const std::vector<float> same(kHeadDim, 0.5f);
  for (std::int32_t t = 0; t < 300; ++t)
    for (std::int32_t l = 0; l < kLayers; ++l)
      for (std::int32_t m = 0; m < 2; ++m)
        store_kv(same.data(), same.data(), shape().attention(), s.cache().token(l, m, t));
  s.new_queries();
  std::vector<float> out(s.width());
  const Region r = region_at(plan->rules, 300);
  for (std::int32_t l = 0; l < kLayers; ++l) {
    if (plan->dense_layer(l)) continue;
    const DecodeRow row{.cache = &s.cache(), .method = s.method(), .q = s.query(l).data(), .out = out.data()};
    attention.run(l, std::span(&row, 1), shape().attention());
    for (const auto& units : s.method()->layer(l).attended) {
      ASSERT_EQ(size32(units), r.n_select);
      for (std::size_t i = 0; i < units.size(); ++i)
        ASSERT_EQ(units[i], r.last_unit - r.n_select + static_cast<std::int32_t>(i)) << l;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllRecipes, DecodeContract, with_groups(kMethods), case_name);
INSTANTIATE_TEST_SUITE_P(MoreBlocks, DecodeContract,
                         ::testing::Combine(::testing::ValuesIn(kMoreMethods), ::testing::Values(4, 5)), case_name);

}  // namespace
}  // namespace mneme
