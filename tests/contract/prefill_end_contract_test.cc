// Contract of every recipe that drops, or whose budget the prompt determines: kept tokens are the reference's, and
// attention is over the kept tokens.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "tests/contract/contract_case.h"
#include "tests/contract/dropping_sequence.h"

namespace mneme {
namespace {

using namespace dropping;

constexpr Method kMethods[] = {
    {"refreekv", ""},
    {"refreekv", "dense=none,loss=0.2"},
    {"refreekv", "loss=0"},
    {"refreekv", "loss=2,dense=none"},
    {"refreekv", "loss=0.3,rows=5,dense=none"},
    {"refreekv", "loss=0.3,rank=mass,dense=none"},
    {"refreekv", "loss=0.3,first_in_norm=yes,dense=none"},
    {"refreekv", "loss=0.3,norm_first=0,sink=0,dense=none"},
    {"refreekv", "budget=64"},
    {"snapkv", "recent=8,rows=8"},
    {"snapkv", "recent=8,rows=8,smooth=mean:5"},
    {"snapkv", "recent=1,rows=1,smooth=none"},
    {"snapkv", "recent=8,rows=40,sink=4,scope=layer"},
    {"snapkv", "recent=96,rows=4"},
    {"h2o", "recent=48"},
    {"h2o", "recent=10,sink=4,scope=layer,dense=0"},
    {"h2o", "recent=96"},
    {"h2o", "recent=16,drop=prefill_end,smooth=max:3"},
    {"snapkv", "recent=8,rows=8,share=pyramid:20"},
    {"snapkv", "recent=8,rows=8,share=pyramid:3,smooth=mean:5,dense=1"},
    {"snapkv", "recent=8,rows=8,share=heads:0.2"},
    {"snapkv", "recent=8,rows=8,share=heads_safe:0.5,smooth=mean:5"},
    {"cake", "recent=8,rows=8"},
    {"cake", "recent=16,rows=5,sink=4,gamma=10,smooth=none,share=preference:1-2"},
    {"cake", "recent=8,rows=8,share=even,scope=layer"},
    {"raas", "sink=0,recent=0,stamp_page=8,dense=none"},
    {"raas", "sink=8,recent=16,stamp_page=8,stamp=half,dense=1"},
    {"raas", "sink=3,recent=7,stamp_page=5,stamp=0.05,pin_prompt=yes"},
    {"tova", ""},
    {"tova", "scope=kv_head,sink=3,recent=6"},
    {"tova", "rank=position"},
    {"quest", "budget=norm,loss=0.3,unit=page:8,dense=1"},
    {"oracle", "budget=norm,loss=0.2,rows=3,sink=0,recent=4"},
    {"louiskv", "budget=norm,loss=0.3,sink=4,recent=16,segment=4-8,unit=cluster:4,tau=2,dense=none"},
};

class PrefillEndContract : public MethodContract {
 protected:
  MethodShape shape() const { return shape_of(kLayers, kHeadDim); }
  std::shared_ptr<const Plan> plan(std::int32_t budget) const { return compile(recipe_of(method(), budget), shape()); }
  // f64 attention over the reference's tokens, for the last row.
  std::vector<float> expected_output(Sequence& s, std::int32_t layer,
                                     const std::vector<std::vector<std::int32_t>>& stored) const;

  ThreadPool pool_{1};
  CpuContext context_{.pool = &pool_, .rounding = Rounding::kFixed};
};

// Keys and values of every stored run, as 16-bit patterns.
std::vector<std::vector<float>> contents_of(const SequenceCache& cache) {
  std::vector<std::vector<float>> contents;
  for (std::int32_t l = 0; l < kLayers; ++l)
    for (std::int32_t m = 0; m < 2; ++m) {
      std::vector<KvRun> runs;
      cache.append_runs(l, m, 0, cache.length(), runs);
      for (const KvRun& run : runs) {
        const auto* bits = reinterpret_cast<const std::uint16_t*>(run.kv);
        contents.emplace_back(bits, bits + run.n_tokens * 2 * kHeadDim);
      }
    }
  return contents;
}

// Equal, or different only in tokens whose score is within rounding of the last one kept. False: different.
bool expect_same_tokens(const ReferencePrefillEnd::Head& expected, const std::vector<std::int32_t>& actual) {
  if (expected.stored == actual) return true;
  EXPECT_EQ(expected.stored.size(), actual.size());
  if (expected.scores.empty()) return false;  // pages: near the threshold of a stamp
  double last = INFINITY;
  const auto score = [&](std::int32_t position) {
    const auto at = std::lower_bound(expected.ranked.begin(), expected.ranked.end(), position);
    return expected.scores[at - expected.ranked.begin()];
  };
  for (std::int32_t t : expected.stored) last = std::min(last, score(t));
  std::vector<std::int32_t> odd;
  std::set_symmetric_difference(expected.stored.begin(), expected.stored.end(), actual.begin(), actual.end(),
                                std::back_inserter(odd));
  for (std::int32_t t : odd) EXPECT_LE(std::abs(score(t) - last), 2e-5 * (1e-3 + last)) << "position " << t;
  return false;
}

std::vector<float> PrefillEndContract::expected_output(Sequence& s, std::int32_t layer,
                                                       const std::vector<std::vector<std::int32_t>>& stored) const {
  const AttentionShape a = shape().attention();
  const auto element = [&](const std::byte* token, std::int32_t i) {
    std::uint16_t bits;
    std::memcpy(&bits, token + 2 * i, 2);
    if (a.kv_dtype == DType::kBF16) return double{static_cast<float>(std::bit_cast<bf16>(bits))};
    return double{static_cast<float>(std::bit_cast<f16>(bits))};
  };
  std::vector<float> out(s.width());
  for (std::int32_t h = 0; h < shape().n_heads; ++h) {
    const std::int32_t m = h / a.group;
    const float* q = s.queries(layer).data() + h * a.head_dim;
    double sum = 0;
    std::vector<double> values(a.head_dim, 0.0);
    for (std::int32_t t : stored[m]) {
      const std::byte* token = s.whole().token(layer, m, t);
      double score = 0;
      for (std::int32_t c = 0; c < a.head_dim; ++c) score += q[c] * element(token, c);
      const double p = std::exp(score * a.scale);
      sum += p;
      for (std::int32_t c = 0; c < a.head_dim; ++c) values[c] += p * element(token, a.head_dim + c);
    }
    for (std::int32_t c = 0; c < a.head_dim; ++c) out[h * a.head_dim + c] = static_cast<float>(values[c] / sum);
  }
  return out;
}

TEST_P(PrefillEndContract, KeepsAndAttendsAsTheReference) {
  const auto plan = this->plan(96);
  int compared = 0;
  {
    const std::uint64_t seed = 3;
    Sequence s(shape(), plan, context_, seed);
    // Two turns; prompts in passes of many rows, of one, and shorter than the observed rows.
    const std::vector<std::vector<std::int32_t>> turns = {{90, 1, 60, 3}, {70, 2}};
    bool same = true;
    for (const auto& turn : turns) {
      std::int32_t left = std::accumulate(turn.begin(), turn.end(), 0);
      for (std::size_t step = 0; step < turn.size() + 12 && same; ++step) {
        const bool decodes = step >= turn.size();
        const std::int32_t n = decodes ? 1 : turn[step];
        left = decodes ? 0 : left - n;
        std::vector<std::vector<std::vector<std::int32_t>>> before;  // [layer][head], with the rows' own tokens
        for (std::int32_t l = 0; l < kLayers; ++l) {
          before.emplace_back();
          for (std::int32_t m = 0; m < 2; ++m) {
            auto& tokens = before.back().emplace_back(positions_of(s.cache(), l, m));
            for (std::int32_t i = 0; i < n; ++i) tokens.push_back(s.cache().length() + i);
          }
        }
        const std::vector<float> out = s.pass(n, decodes, left);
        s.commit();
        for (std::int32_t l = 0; l < kLayers; ++l)
          s.reference(l).see(s.whole(),
                             {.q = s.queries(l).data(), .n_rows = n, .decodes = decodes, .prefill_left = left});
        ReferencePrefillEnd::share_layers(s.references());
        for (std::int32_t l = 0; l < kLayers; ++l) {
          if (plan->everything && decodes) {
            const std::vector<float> expected = expected_output(s, l, before[l]);
            for (std::size_t i = 0; i < s.width(); ++i)
              ASSERT_LE(std::abs(out[static_cast<std::size_t>(l) * s.width() + i] - expected[i]), 3e-5f)
                  << "layer " << l << " step " << step;
          }
          if (plan->norm && plan->compressed(l)) {
            ASSERT_EQ(s.method().layer(l).budget, s.reference(l).budget());
          }
          if (!plan->drops() || !plan->compressed(l)) {
            for (std::int32_t m = 0; m < 2; ++m) ASSERT_EQ(s.cache().n_stored(l, m), s.cache().length());
            continue;
          }
          for (std::int32_t m = 0; m < 2; ++m)
            same = expect_same_tokens(s.reference(l).heads()[m], positions_of(s.cache(), l, m)) && same;
          ASSERT_FALSE(HasFailure()) << "layer " << l << " step " << step << " seed " << seed;
          ++compared;
        }
      }
    }
  }
  if (plan->drops()) {
    EXPECT_GE(compared, 28) << "too many near ties";
  }
}

// With prompt and answer within the budget nothing is dropped, and the bits are those of full attention.
TEST_P(PrefillEndContract, WithinTheBudgetTheBitsAreThoseOfFull) {
  const auto plan = this->plan(200);
  if (plan->norm || plan->recipe.budget != 200) GTEST_SKIP() << "the recipe sets its own budget";
  Sequence a(shape(), plan, context_, 9), b(shape(), compile(make_recipe("full", {}), shape()), context_, 9);
  a.prefill(150);
  b.prefill(150);
  for (int i = 0; i < 49; ++i) ASSERT_EQ(a.decode(), b.decode()) << i;
  EXPECT_FALSE(a.cache().dropped());
  ASSERT_EQ(a.decode(), b.decode());  // 200 tokens, the current one among them
}

TEST_P(PrefillEndContract, AForkGoesOnAsItsOriginal) {
  const auto plan = this->plan(96);
  Sequence a(shape(), plan, context_, 5), b(shape(), plan, context_, 5);
  for (Sequence* s : {&a, &b}) {
    s->prefill(80, 40);
    s->prefill(40);
  }
  for (int i = 0; i < 5; ++i) ASSERT_EQ(a.decode(), b.decode());
  // b continues from a fork of itself, with which it shares its pages.
  const SequenceCache parent = b.cache().fork();
  const MethodState state(b.method());
  const std::vector<std::vector<float>> before = contents_of(parent);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(a.decode(), b.decode()) << i;
  ASSERT_EQ(a.prefill(30), b.prefill(30));
  ASSERT_EQ(a.decode(), b.decode());
  for (std::int32_t l = 0; l < kLayers; ++l)
    for (std::int32_t m = 0; m < 2; ++m) ASSERT_EQ(a.cache().stored(l, m), b.cache().stored(l, m));
  ASSERT_EQ(contents_of(parent), before) << "the parent is unaffected";
}

// A step that was computed and not committed: recomputed, everything is as if it were the first time.
TEST_P(PrefillEndContract, AFailedStepDropsNothing) {
  const auto plan = this->plan(96);
  Sequence a(shape(), plan, context_, 6), b(shape(), plan, context_, 6);
  for (Sequence* s : {&a, &b}) s->prefill(80, 45);
  for (const auto& [n, decodes, left] : {std::tuple{40, false, 5}, {5, false, 0}, {1, true, 0}, {1, true, 0}}) {
    const std::vector<float> once = a.pass(n, decodes, left);
    a.commit();
    b.pass(n, decodes, left);
    b.step_back(n);
    ASSERT_EQ(once, b.again(n, decodes, left)) << n;
    b.commit();
    for (std::int32_t l = 0; l < kLayers; ++l)
      for (std::int32_t m = 0; m < 2; ++m) ASSERT_EQ(a.cache().stored(l, m), b.cache().stored(l, m));
  }
}

TEST_P(PrefillEndContract, AchievedBudgetMemoryAndStatistics) {
  const auto plan = this->plan(96);
  Sequence s(shape(), plan, context_, 8);
  s.prefill(180, 20);
  s.prefill(20);
  for (int i = 0; i < 150; ++i) s.decode();
  const bool each_step = plan->drops() && plan->drop->when == DropWhen::kOverBudget;
  const std::int32_t page = plan->drops() && plan->drop->rank == Rank::kStamp ? plan->drop->stamps.page : 1;
  for (std::int32_t l = 0; l < kLayers; ++l) {
    const LayerStats& stats = s.method().stats().layers[l];
    EXPECT_EQ(stats.steps, 150);
    if (!plan->compressed(l)) {
      EXPECT_EQ(stats.retention.prompt_tokens, 0);
      EXPECT_GT(stats.attended_tokens, 200 * 150 * 2);
      continue;
    }
    EXPECT_EQ(stats.retention.prefill_ends, 1);
    EXPECT_EQ(stats.retention.prompt_tokens, 200 * 2);
    EXPECT_LE(stats.retention.kept_tokens, stats.retention.prompt_tokens);
    const double achieved = static_cast<double>(stats.attended_tokens) / static_cast<double>(stats.attended_heads);
    if (page > 1) {
      EXPECT_LE(achieved, 96.0);
      EXPECT_GT(achieved, 96.0 - page);
      EXPECT_LE(std::abs(stats.retention.dropped_tokens - 2 * (350 - 95)), 2 * page);
    } else if (each_step) {
      EXPECT_EQ(achieved, 96.0);
      EXPECT_EQ(stats.retention.dropped_tokens, 2 * (350 - 95));
    } else if (plan->drops()) {
      const double kept = static_cast<double>(stats.retention.kept_tokens) / 2;
      EXPECT_EQ(achieved, kept + 75.5) << "what decodes stays: 1 to 150 tokens more";
      EXPECT_EQ(stats.retention.dropped_tokens, 2 * 200 - stats.retention.kept_tokens);
    } else {
      const double kept = static_cast<double>(stats.retention.kept_tokens) / 2;
      EXPECT_LE(achieved, kept);
      EXPECT_GE(achieved, kept - 2 * 8) << "of the largest units";
    }
    for (std::int32_t m = 0; m < 2; ++m) {
      // No pages are shared here: what is not needed is free, except for a quarter and a page.
      const auto pages = static_cast<std::int32_t>(s.cache().table(l, m).size());
      const std::int32_t wanted = (s.cache().n_stored(l, m) + kPageTokens - 1) / kPageTokens;
      EXPECT_LE(4 * (pages - wanted), wanted + 4);
    }
  }
}

// For a prompt no longer than the sinks the rule may give a smaller budget: sinks and window are then everything until
// there are more tokens.
TEST(NormBudget, LessThanTheSinks) {
  const MethodShape shape{.n_layers = kLayers, .n_heads = 8, .n_kv_heads = 2, .head_dim = kHeadDim};
  ThreadPool pool(1);
  for (const Method& m :
       {Method{"louiskv", "budget=norm,loss=1,sink=24,recent=16,segment=4-8,unit=cluster:4,tau=2,dense=none"},
        {"louiskv", "budget=norm,loss=1,sink=24,recent=16,segment=4-8,unit=cluster:4,tau=-1,dense=none"},
        {"quest", "budget=norm,loss=1,sink=24,recent=16,unit=page:8,dense=none"},
        {"oracle", "budget=norm,loss=1,sink=24,recent=16,dense=none"}}) {
    SCOPED_TRACE(fmt::format("{} {}", m.name, m.overrides));
    Sequence s(shape, compile(recipe_of(m, 96), shape), {.pool = &pool, .rounding = Rounding::kFixed}, 4);
    s.prefill(12);
    for (std::int32_t l = 0; l < kLayers; ++l) ASSERT_LT(s.method().layer(l).budget, 12);
    for (int i = 0; i < 20; ++i) s.decode();
    for (std::int32_t l = 0; l < kLayers; ++l) {
      const LayerStats& stats = s.method().stats().layers[l];
      EXPECT_EQ(stats.attended_tokens, 2 * 20 * (12 + 21.0 / 2)) << "all of them";
      EXPECT_EQ(stats.sparse_steps, 8) << "with more than the sinks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllRecipes, PrefillEndContract, with_groups(kMethods), case_name);

}  // namespace
}  // namespace mneme
