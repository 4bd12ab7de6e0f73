// One worked example per paper of what is kept when a prefill ends. One layer, one KV head, one query head; every row
// has the same query, so that a row's attention is proportional to the weights of the tokens it attends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reference/methods/prefill_end_ref.h"
#include "src/base/size32.h"
#include "src/methods/prefill_end.h"
#include "src/ops/attention/attention.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

constexpr MethodShape kShape{.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .kv_dtype = DType::kF16};

class Example {
 public:
  Example(const char* method, std::int32_t budget, const char* overrides) {
    Recipe recipe = make_recipe(method, {.budget = budget});
    apply_overrides(overrides, recipe);
    const auto plan = compile(recipe, kShape);
    method_ = std::make_unique<MethodState>(plan);
    reference_ = std::make_unique<ReferencePrefillEnd>(plan, 0);
  }

  // Tokens with these weights; returns the kept positions.
  std::vector<std::int32_t> prefill(const std::vector<double>& weights) { return pass(weights, false); }
  std::vector<std::int32_t> decode(double weight) { return pass({weight}, true); }

 private:
  std::vector<std::int32_t> pass(const std::vector<double>& weights, bool decodes) {
    const auto n = size32(weights);
    const AttentionShape shape = kShape.attention();
    for (double w : weights) {
      std::vector<float> k(8, 0.0f);
      k[0] = static_cast<float>(std::log(w) / shape.scale);
      for (SequenceCache* c : {&cache_, &whole_}) {
        c->extend(1);
        store_kv(k.data(), k.data(), shape, c->token(0, 0, c->length() - 1));
      }
    }
    std::vector<float> q(weights.size() * 8, 0.0f), out(q.size()), lse(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) q[8 * i] = 1.0f;
    std::vector<KvRun> runs;
    cache_.append_runs(0, 0, 0, cache_.length(), runs);
    const PrefillPart part{.q = q.data(), .q_stride = 8, .runs = runs};
    const PrefillHead head{.parts = std::span(&part, 1),
                           .n_rows = n,
                           .out = reinterpret_cast<std::byte*>(out.data()),
                           .out_stride = 8,
                           .lse = lse.data()};
    attend_prefill_ref(std::span(&head, 1), shape);
    const SeenTokens rows{.cache = &cache_,
                          .method = method_.get(),
                          .n_rows = n,
                          .decodes = decodes,
                          .q = q.data(),
                          .q_stride = 8,
                          .lse = lse.data()};
    prefill_end_.run(0, std::span(&rows, 1), shape);
    method_->commit(cache_);
    reference_->see(whole_, {.q = q.data(), .n_rows = n, .decodes = decodes});
    ReferencePrefillEnd::share_layers(std::span(reference_.get(), 1));
    std::vector<std::int32_t> positions;
    for (const TokenRange& r : cache_.stored(0, 0))
      for (std::int32_t t = r.begin; t < r.end; ++t) positions.push_back(t);
    EXPECT_EQ(positions, reference_->heads()[0].stored) << "the reference selected otherwise";
    return positions;
  }

  ThreadPool threads_{1};
  PagePool pool_{KvShape{1, 1, 8, DType::kF16}, 8};
  SequenceCache cache_{pool_}, whole_{pool_};
  std::unique_ptr<MethodState> method_;
  std::unique_ptr<ReferencePrefillEnd> reference_;
  PrefillEnd prefill_end_{{.pool = &threads_}};
};

// Of the last row's 100 the first four tokens have 50; the norm is that of 1, 20, 1, 4, 10, 14: 26.72.
//   from 9: 14.00, 47.6 % missing    from 8: 17.20, 35.6 %    from 7: 17.66    from 6: 17.69    from 5: 26.70, 0.07 %
TEST(WorkedDrops, ReFreeKvKeepsTheNewestTokensWhoseNormIsEnough) {
  const std::vector<double> weights = {40, 5, 3, 2, 1, 20, 1, 4, 10, 14};
  EXPECT_THAT(Example("refreekv", 8, "dense=none").prefill(weights), ElementsAre(0, 1, 2, 3, 5, 6, 7, 8, 9));
  EXPECT_THAT(Example("refreekv", 8, "dense=none,loss=0.4").prefill(weights), ElementsAre(0, 1, 2, 3, 8, 9));
  EXPECT_THAT(Example("refreekv", 8, "dense=none,loss=0.5").prefill(weights), ElementsAre(0, 1, 2, 3, 9));
  // By attention instead: 5 and 9 have a norm of 24.41, 8.6 % missing; with 8 it is 26.38, 1.3 %.
  EXPECT_THAT(Example("refreekv", 8, "dense=none,loss=0.1,rank=mass").prefill(weights), ElementsAre(0, 1, 2, 3, 5, 9));
  // With the first tokens in the norm (40.47 of 48.49) 16.5 % are missing with no other token; 9 alone leaves 11.7 %.
  EXPECT_THAT(Example("refreekv", 8, "dense=none,loss=0.15,first_in_norm=yes").prefill(weights),
              ElementsAre(0, 1, 2, 3, 9));
}

// The two last rows give 8 parts to token 3, 4 to token 5, 1 to each of the others. Pooled by the maximum of three, 2,
// 3 and 4 are equal: the newest two stay.
TEST(WorkedDrops, SnapKvKeepsItsWindowAndWhatItAttends) {
  const std::vector<double> weights = {1, 1, 1, 8, 1, 4, 1, 1};
  EXPECT_THAT(Example("snapkv", 4, "recent=2,rows=2,smooth=max:3").prefill(weights), ElementsAre(3, 4, 6, 7));
  EXPECT_THAT(Example("snapkv", 4, "recent=2,rows=2,smooth=none").prefill(weights), ElementsAre(3, 5, 6, 7));
  // Decoded tokens are kept; the next prompt of two tokens attends 3, and drops the token that it attends least.
  Example e("snapkv", 4, "recent=2,rows=2,smooth=none");
  e.prefill(weights);
  EXPECT_THAT(e.decode(1), ElementsAre(3, 5, 6, 7, 8));
  EXPECT_THAT(e.prefill({1, 1}), ElementsAre(3, 5, 9, 10));
}

// Sums over the rows: token 0 3.67, 1 0.44, 2 0.60, 3 0.19, 4 0.09. Tokens 1 and 3 weigh the same, but 1 was there for
// more rows. Three stay, for the next step to read four: 4 is recent.
TEST(WorkedDrops, H2oKeepsTheHeavyHittersSoFar) {
  Example e("h2o", 4, "recent=2");
  EXPECT_THAT(e.prefill({6, 1, 2, 1, 1}), ElementsAre(0, 2, 4));
  EXPECT_THAT(e.decode(1), ElementsAre(0, 2, 5)) << "4 has 0.19 by now";
  // Token 6 weighs 30: 5 has 0.10 + 1/39, 2 has 0.80 + 2/39, 0 has 4.27 + 6/39.
  EXPECT_THAT(e.decode(30), ElementsAre(0, 2, 6));
  // No longer recent: 30/69 + 30/39, against 2 with 0.85 + 2/69.
  EXPECT_THAT(e.decode(31), ElementsAre(0, 6, 7));
}

// The last row alone: 0 and 2, and of the equal 1 and 3 the newer; the last token itself has the least and goes.
TEST(WorkedDrops, TovaKeepsWhatTheLastRowAttends) {
  Example e("tova", 4, "");
  EXPECT_THAT(e.prefill({6, 1, 2, 1, 0.5}), ElementsAre(0, 2, 3));
  EXPECT_THAT(e.decode(3), ElementsAre(0, 2, 5));
  EXPECT_THAT(e.decode(0.25), ElementsAre(0, 2, 5)) << "a step's own token may be the one";
}

// Three pages of two tokens, and one that is being written. At the first step the pages have 0, 0.3 and 0.6 of the
// attention, so that the first one's stamp stays behind; when the fourth page is complete, it goes.
TEST(WorkedDrops, RaasDropsThePageThatNoStepAttendedForLongest) {
  Example e("raas", 8, "dense=none,sink=0,recent=0,stamp_page=2,stamp=0.01");
  EXPECT_THAT(e.prefill({1e-4, 1e-4, 15, 15, 30, 30}), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(e.decode(10), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(e.decode(1), ElementsAre(2, 3, 4, 5, 6, 7)) << "eight tokens leave no room for the next step's";
  // Two steps on the pages of 2, 4 and 6 have been attended: of equal stamps the oldest page goes.
  EXPECT_THAT(e.decode(1), ElementsAre(2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(e.decode(1), ElementsAre(4, 5, 6, 7, 8, 9));
}

TEST(WorkedDrops, RaasKeepsAPinnedPromptWhileThereAreOtherPages) {
  Example e("raas", 8, "dense=none,sink=0,recent=0,stamp_page=2,stamp=half,pin_prompt=yes");
  EXPECT_THAT(e.prefill({1e-4, 1e-4, 1e-4}), ElementsAre(0, 1, 2));
  for (int i = 0; i < 4; ++i) e.decode(10);
  EXPECT_THAT(e.decode(10), ElementsAre(0, 1, 2, 3, 6, 7)) << "tokens 2 and 3 share a page, which is the prompt's";
}

// All rows have one query here: a token of weight w has w / 10 and w / 11, so that its variance grows with its mean and
// CAKE keeps what SnapKV keeps.
TEST(WorkedDrops, CakeWithEvenAttentionIsSnapKv) {
  const std::vector<double> weights = {4, 1, 1, 2, 1, 1, 1};
  EXPECT_THAT(Example("snapkv", 4, "recent=2,rows=2,smooth=none").prefill(weights), ElementsAre(0, 3, 5, 6));
  EXPECT_THAT(Example("cake", 4, "recent=2,rows=2,smooth=none").prefill(weights), ElementsAre(0, 3, 5, 6));
}

}  // namespace
}  // namespace mneme
