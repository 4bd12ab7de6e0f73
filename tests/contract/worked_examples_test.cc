// One worked example per paper: two channels in use, one KV head, one layer. Each is checked against the fast form and
// the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "reference/methods/decode_attention_ref.h"
#include "src/methods/decode_attention.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

using Pair = std::array<float, 2>;  // the first two of eight channels; the others are 0
constexpr std::int32_t kHeadDim = 8;

// A sequence of one layer and one KV head, attended by `group` query heads.
class Example {
 public:
  Example(const char* method, const RecipeOptions& options, const char* overrides, std::int32_t group)
      : shape_{.n_layers = 1, .n_heads = group, .n_kv_heads = 1, .head_dim = kHeadDim} {
    Recipe recipe = make_recipe(method, options);
    apply_overrides(overrides, recipe);
    const auto plan = compile(recipe, shape_);
    method_ = std::make_unique<MethodState>(plan);
    reference_ = std::make_unique<ReferenceLayer>(plan, 0);
  }

  void append(const std::vector<Pair>& keys) {
    for (const Pair& pair : keys) {
      std::vector<float> k(kHeadDim, 0.0f), v(kHeadDim, 1.0f);
      k[0] = pair[0];
      k[1] = pair[1];
      cache_.extend(1);
      store_kv(k.data(), v.data(), shape_.attention(), cache_.token(0, 0, cache_.length() - 1));
    }
  }
  // Appends a token with a zero key and decodes with these queries, one per head of the group. Returns the selected
  // units.
  std::vector<std::int32_t> step(const std::vector<Pair>& queries) {
    append({{0, 0}});
    std::vector<float> q(queries.size() * kHeadDim, 0.0f), out(q.size());
    for (std::size_t h = 0; h < queries.size(); ++h) {
      q[h * kHeadDim] = queries[h][0];
      q[h * kHeadDim + 1] = queries[h][1];
    }
    const DecodeRow row{.cache = &cache_, .method = method_.get(), .q = q.data(), .out = out.data()};
    attention_.run(0, std::span(&row, 1), shape_.attention());
    const std::vector<std::int32_t> units = method_->layer(0).attended[0];
    const auto heads = reference_->step(cache_, q.data(), out.data());
    EXPECT_EQ(heads[0].units, units) << "the reference selected otherwise";
    attended_ = heads[0].tokens;
    if (method_->keeps_tokens(0)) {
      EXPECT_EQ(method_->layer(0).kept_tokens[0], attended_);
    }
    scores_ = heads[0].unit_scores;
    return units;
  }
  const std::vector<std::int32_t>& attended_tokens() const { return attended_; }
  const std::vector<double>& unit_scores() const { return scores_; }

 private:
  MethodShape shape_;
  PagePool pool_{{1, 1, kHeadDim, DType::kBF16}, 16};
  SequenceCache cache_{pool_};
  ThreadPool threads_{1};
  DecodeAttention attention_{{.pool = &threads_, .rounding = Rounding::kFixed}};
  std::unique_ptr<MethodState> method_;
  std::unique_ptr<ReferenceLayer> reference_;
  std::vector<std::int32_t> attended_;
  std::vector<double> scores_;
};

// Quest, section 3: a page's score is the sum over channels of max(q * max, q * min), which no key of it exceeds.
//
//   page  keys                            box                q = (1, 1): bound   its best key
//   0     (1,0) (0,1) (1,1) (0,0)         [0,1] x [0,1]      1 + 1 =  2          2
//   1     (3,-3) (-3,3) (0,0) (0,0)       [-3,3] x [-3,3]    3 + 3 =  6          0
//   2     (2,2) (2,2) (1,1) (2,1)         [1,2] x [1,2]      2 + 2 =  4          4
//   3     (-1,-1) four times              {-1} x {-1}       -1 - 1 = -2         -2
//
// Pages 1 and 2 are selected, though no key of page 1 scores high: a bound is not a score. The true scores would be 0
// and 2.
TEST(WorkedExample, QuestReadsThePagesOfTheLargestBounds) {
  const std::vector<Pair> keys = {{1, 0}, {0, 1}, {1, 1}, {0, 0},   {3, -3},  {-3, 3},  {0, 0},   {0, 0}, {2, 2},
                                  {2, 2}, {1, 1}, {2, 1}, {-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}, {0, 0}};
  Example quest("quest", {.budget = 12}, "unit=page:4,dense=none", 1);
  quest.append(keys);
  EXPECT_THAT(quest.step({{1, 1}}), ElementsAre(1, 2));
  EXPECT_THAT(quest.unit_scores(), ElementsAre(2, 6, 4, -2));
  // The open page, tokens 16 and 17, is always attended.
  EXPECT_THAT(quest.attended_tokens(), ElementsAre(4, 5, 6, 7, 8, 9, 10, 11, 16, 17));

  Example oracle("oracle", {.budget = 12, .sink = 0, .recent = 0}, "unit=page:4,pool=maxQK", 1);
  oracle.append(keys);
  EXPECT_THAT(oracle.step({{1, 1}}), ElementsAre(0, 2));

  // Two heads, (1, 1) and (-1, 1), pooled by maximum: bounds 2 6 4 -2 and 1 6 1 0 give 2 6 4 0.
  Example group("quest", {.budget = 12}, "unit=page:4,dense=none", 2);
  group.append(keys);
  EXPECT_THAT(group.step({{1, 1}, {-1, 1}}), ElementsAre(1, 2));
  EXPECT_THAT(group.unit_scores(), ElementsAre(2, 6, 4, 0));
}

// Pages of four equal keys, so that bounds are dot products: 0 is the sinks, 5 the window.
//
//   page   1: (4,0)   2: (0,4)   3: (3,3)   4: (-4,-4)
std::vector<Pair> four_pages() {
  std::vector<Pair> keys(4, Pair{0, 0});
  for (const Pair& key : {Pair{4, 0}, Pair{0, 4}, Pair{3, 3}, Pair{-4, -4}}) keys.insert(keys.end(), 4, key);
  keys.push_back({0, 0});
  return keys;
}

// FreeKV, section 3: a step attends the selection made with the previous step's query, unless the cosine of the two
// queries is below tau.
//
//   step   q            cosine   page 1   2     3     4     selected with q   attended, tau 0.5   tau -1
//   1      (1, 0)       -        4        0     3     -4    1 3               1 3 (the first)     1 3
//   2      (0, 1)       0        0        4     3     -4    2 3               2 3 (corrected)     1 3
//   3      (0.8, 0.6)   0.6      3.2      2.4   4.2   ...   1 3               2 3 (step 2's)      2 3
//   4      (0.8, 0.6)   1        3.2      2.4   4.2   ...   1 3               1 3 (step 3's)      1 3
TEST(WorkedExample, FreeKvSelectsSpeculativelyAndCorrectsWhereTheQueryMoved) {
  const std::vector<std::vector<Pair>> steps = {{{1, 0}}, {{0, 1}}, {{0.8f, 0.6f}}};
  const auto run = [&](const char* tau) {
    Example freekv("freekv", {.budget = 16, .sink = 4, .recent = 4},
                   (std::string("unit=page:4,dense=none,alpha=1,tau=") + tau).c_str(), 1);
    freekv.append(four_pages());
    std::vector<std::vector<std::int32_t>> attended;
    for (const auto& q : steps) attended.push_back(freekv.step(q));
    EXPECT_THAT(freekv.attended_tokens(), ElementsAre(0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 20, 21, 22, 23));
    attended.push_back(freekv.step(steps.back()));
    return attended;
  };
  EXPECT_THAT(run("0.5"), ElementsAre(ElementsAre(1, 3), ElementsAre(2, 3), ElementsAre(2, 3), ElementsAre(1, 3)));
  EXPECT_THAT(run("-1"), ElementsAre(ElementsAre(1, 3), ElementsAre(1, 3), ElementsAre(2, 3), ElementsAre(1, 3)));
}

// The same queries, corrected where the missing share of softmax(q . k) over pages 1 to 4 is above eps:
//
//   step   q            softmax                   selected   ahead   missing      attended, eps 0.5
//   1      (1, 0)       0.73 0.01 0.27 0.00       1 3        -       -            1 3 (the first)
//   2      (0, 1)       0.01 0.73 0.27 0.00       2 3        1 3     2: 0.73      2 3 (corrected)
//   3      (0.8, 0.6)   0.24 0.11 0.65 0.00       1 3        2 3     1: 0.24      2 3 (step 2's)
//   4      (0.8, 0.6)   0.24 0.11 0.65 0.00       1 3        1 3     0            1 3 (step 3's)
//
// With eps 0.2 step 3 is corrected too, with 0.8 neither is.
TEST(WorkedExample, TheMassGateCorrectsWhereWhatIsMissingWeighsEnough) {
  const std::vector<std::vector<Pair>> steps = {{{1, 0}}, {{0, 1}}, {{0.8f, 0.6f}}, {{0.8f, 0.6f}}};
  const auto run = [&](const char* pool, const char* eps) {
    const std::string overrides = std::string("unit=page:4,dense=none,alpha=1,gate=mass,pool=") + pool + ",eps=" + eps;
    Example freekv("freekv", {.budget = 16, .sink = 4, .recent = 4}, overrides.c_str(), 1);
    freekv.append(four_pages());
    std::vector<std::vector<std::int32_t>> attended;
    for (const auto& q : steps) attended.push_back(freekv.step(q));
    return attended;
  };
  const std::vector<std::int32_t> a = {1, 3}, b = {2, 3};
  for (const char* pool : {"meanS", "maxS", "meanQK", "maxQK", "none"}) {
    EXPECT_THAT(run(pool, "0.5"), ElementsAre(a, b, b, a)) << pool;
    EXPECT_THAT(run(pool, "0.2"), ElementsAre(a, b, a, a)) << pool;
    EXPECT_THAT(run(pool, "0.8"), ElementsAre(a, a, b, a)) << pool;
    EXPECT_THAT(run(pool, "-1"), ElementsAre(a, b, a, a)) << pool;
    EXPECT_THAT(run(pool, "1"), ElementsAre(a, a, b, a)) << pool;
  }
}

// The mean of softmaxes over two heads, q = (2, 0) and (0, 1), alpha = 1:
//
//   page                  1       2       3       4
//   head 0, q . k         8       0       6      -8
//   softmax               0.880   0.000   0.119   0.000
//   head 1, q . k         0       4       3      -4
//   softmax               0.013   0.721   0.265   0.000
//   mean of softmaxes     0.447   0.361   0.192   0.000   -> 1 and 2: what either head wants most
//   mean of scores        4       2       4.5    -6       -> 1 and 3
TEST(WorkedExample, FreeKvPoolsSoftmaxesOverTheGroup) {
  const auto run = [&](const char* pool) {
    Example freekv("freekv", {.budget = 16, .sink = 4, .recent = 4},
                   (std::string("unit=page:4,dense=none,alpha=1,pool=") + pool).c_str(), 2);
    freekv.append(four_pages());
    return freekv.step({{2, 0}, {0, 1}});
  };
  EXPECT_THAT(run("meanS"), ElementsAre(1, 2));
  EXPECT_THAT(run("meanQK"), ElementsAre(1, 3));
}

// LouisKV: clusters of the prompt, segments of the answer, selected at boundaries. Sinks 2, buffer 4, segments of 2 to
// 4, budget 10, tau 0.7. The prompt has 14 tokens; of the 8 between sinks and buffer, 4 clusters are made:
//
//   token     2      3       4      5       6       7      8       9
//   key      (4,0)  (-4,0)  (0,4)  (0,-4)  (-4,0)  (4,0)  (0,-4)  (0,4)
//   cluster   0      2       1      3       2       0      3       1
//
// The last four tokens, all (0,0), and the answer's, go through the buffer.
//
//   step  token  q           cosine  units                    buffer    room  ranking                attended of units
//   1     14     (1, 0)      -       0 to 3, 4 = [10, 14)     14        7     0: 4, then 4 3 1: 0    2 7, 10 to 13, 5
//   2     15     (0.8, 0.6)  0.8     kept                     14 15     6                            2 7, 10 to 13
//   3     16     (0, 1)      0.6     16 begins a segment      14 to 16  5     1: 4, then 4 2 0: 0    4 9, 10 to 12
//   4     17     (0, 1)      1       kept                     14 to 17  4                            4 9, 10 11
//   5     18     (0, 1)      1       5 = [14, 16) moves out   16 to 18  5                            4 9, 10 to 12
TEST(WorkedExample, LouisKvKeepsARankingUntilTheQueryMoves) {
  Example louiskv("louiskv", {.budget = 10, .sink = 2, .recent = 4}, "unit=cluster:2,segment=2-4,dense=none,tau=0.7",
                  1);
  louiskv.append({{0, 0}, {0, 0}, {4, 0}, {-4, 0}, {0, 4}, {0, -4}, {-4, 0}, {4, 0}, {0, -4}, {0, 4}});
  louiskv.append(std::vector<Pair>(4, Pair{0, 0}));
  EXPECT_THAT(louiskv.step({{1, 0}}), ElementsAre(0, 3, 4));
  EXPECT_THAT(louiskv.attended_tokens(), ElementsAre(0, 1, 2, 5, 7, 10, 11, 12, 13, 14));
  EXPECT_THAT(louiskv.step({{0.8f, 0.6f}}), ElementsAre(0, 4));
  EXPECT_THAT(louiskv.attended_tokens(), ElementsAre(0, 1, 2, 7, 10, 11, 12, 13, 14, 15));
  EXPECT_THAT(louiskv.step({{0, 1}}), ElementsAre(1, 4));
  EXPECT_THAT(louiskv.attended_tokens(), ElementsAre(0, 1, 4, 9, 10, 11, 12, 14, 15, 16));
  EXPECT_THAT(louiskv.step({{0, 1}}), ElementsAre(1, 4));
  EXPECT_THAT(louiskv.attended_tokens(), ElementsAre(0, 1, 4, 9, 10, 11, 14, 15, 16, 17));
  EXPECT_THAT(louiskv.step({{0, 1}}), ElementsAre(1, 4));
  EXPECT_THAT(louiskv.attended_tokens(), ElementsAre(0, 1, 4, 9, 10, 11, 12, 16, 17, 18));
}

// FIER, section 3: in a group of 32 tokens a channel of a key is one of two values, the group's smallest or largest,
// whichever side of their midpoint it is on. q = (1, 0).
//
//   tokens           key      of the group   midpoint   1-bit key
//   0, 2, .. 28      5        0 to 8         4          8
//   30               8                                  8
//   1, 3, .. 29      3                                  0
//   31               0                                  0
//   32 .. 48         2        -4 to 4        0          4
//   49               4                                  4
//   50 .. 63         -4                                 -4
//
// 34 of 64 tokens are wanted: the 16 even ones of the first group score 8, then 18 of the second score 4, and the odd
// ones of the first, truly 3, come after tokens that are truly 2.
TEST(WorkedExample, FierRanksTokensByTheirOneBitKeys) {
  std::vector<Pair> keys;
  for (std::int32_t t = 0; t < 32; ++t) keys.push_back({t == 30 ? 8.0f : t == 31 ? 0.0f : t % 2 == 0 ? 5.0f : 3.0f, 0});
  for (std::int32_t t = 32; t < 64; ++t) keys.push_back({t == 49 ? 4.0f : t < 49 ? 2.0f : -4.0f, 0});
  keys.push_back({0, 0});
  std::vector<std::int32_t> expected;
  for (std::int32_t t = 0; t < 32; t += 2) expected.push_back(t);
  for (std::int32_t t = 32; t < 50; ++t) expected.push_back(t);

  Example fier("fier", {.budget = 36}, "dense=none", 1);
  fier.append(keys);
  EXPECT_EQ(fier.step({{1, 0}}), expected);
  // Tokens 64 and 65 have no codes yet and are always attended.
  EXPECT_EQ(fier.attended_tokens().size(), 36u);
  EXPECT_EQ(fier.attended_tokens().back(), 65);

  // By the true keys the odd ones of the first group (15 of them) would come before all but one of the second.
  Example oracle("oracle", {.budget = 36, .sink = 0, .recent = 2}, "", 1);
  oracle.append(keys);
  const std::vector<std::int32_t> truth = oracle.step({{1, 0}});
  EXPECT_EQ(truth[1], 1);
  EXPECT_NE(truth, expected);
}

// ArkVale: three pages stay, one may come in. Pages of one token, so that scores are dot products.
//
//   page     2  3  5  7  9   others
//   step 1   0  0  3  3  3   0        the three best: 5 7 9
//   step 2   8  6  5  3  1   0        2 comes in; of 5 7 9 the lowest, 9, makes room. The three best are 2 3 5.
TEST(WorkedExample, ArkValeHoldsPagesUntilBetterOnesNeedTheirRoom) {
  std::vector<Pair> keys(11, Pair{0, 0});
  keys[2] = {0, 8}, keys[3] = {0, 6}, keys[5] = {3, 5}, keys[7] = {3, 3}, keys[9] = {3, 1};
  const auto run = [&](const char* overrides) {
    Example arkvale("arkvale", {.budget = 4, .sink = 0, .recent = 0}, overrides, 1);
    arkvale.append(keys);
    EXPECT_THAT(arkvale.step({{1, 0}}), ElementsAre(5, 7, 9));
    return arkvale.step({{0, 1}});
  };
  EXPECT_THAT(run("unit=page:1,index=box,dense=none,hold=1"), ElementsAre(2, 5, 7));
  EXPECT_THAT(run("unit=page:1,index=box,dense=none,hold=3"), ElementsAre(2, 3, 5));
  EXPECT_THAT(run("unit=page:1,index=box,dense=none,hold=0"), ElementsAre(2, 3, 5));
}

// Twilight: with probabilities .5 .3 .15 .05 of what was selected, 0.85 needs three tokens; a second head of the group
// with .5 .025 .025 .45 needs the first and the last. Token 4 is not selected, the current token counts e^-8.
TEST(WorkedExample, TwilightKeepsTheFewestTokensOfAShareOfTheAttention) {
  const float scale = std::sqrt(8.0f);
  std::vector<Pair> keys;
  for (const auto& [a, b] : {std::pair{0.5f, 0.5f}, {0.3f, 0.025f}, {0.15f, 0.025f}, {0.05f, 0.45f}})
    keys.push_back({(8 + std::log(a)) * scale, (8 + std::log(b)) * scale});
  keys.push_back({-10, -10});
  const char* overrides = "unit=page:1,dense=none,pool=meanS,cutoff=top_p:0.85";
  Example one("twilight", {.budget = 5}, overrides, 1);
  one.append(keys);
  EXPECT_THAT(one.step({{1, 0}}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(one.attended_tokens(), ElementsAre(0, 1, 2, 5));
  Example two("twilight", {.budget = 5}, overrides, 2);
  two.append(keys);
  EXPECT_THAT(two.step({{1, 0}, {0, 1}}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(two.attended_tokens(), ElementsAre(0, 1, 2, 3, 5));
}

// The pages of Quest's example: four centroids of four keys are the keys, and the page whose box promises 6 with no key
// above 0 is not read.
TEST(WorkedExample, MnemeReadsThePagesOfTheLargestAttention) {
  Example pages("mneme", {.budget = 12, .sink = 0, .recent = 0},
                "unit=page:4,index=centroids:4,dense=none,schedule=every_step", 1);
  pages.append({{1, 0},
                {0, 1},
                {1, 1},
                {0, 0},
                {3, -3},
                {-3, 3},
                {0, 0},
                {0, 0},
                {2, 2},
                {2, 2},
                {1, 1},
                {2, 1},
                {-1, -1},
                {-1, -1},
                {-1, -1},
                {-1, -1},
                {0, 0}});
  EXPECT_THAT(pages.step({{1, 1}}), ElementsAre(0, 2));
}

// FIER below its group of 32: tokens of the open group are candidates with exact scores.
TEST(WorkedExample, FierScoresTheOpenGroupWhereItMust) {
  Example fier("fier", {.budget = 3}, "dense=none,open_group=score", 1);
  fier.append({{1, 0}, {5, 0}, {2, 0}, {4, 0}, {0, 0}});
  EXPECT_THAT(fier.step({{1, 0}}), ElementsAre(1, 3));
  EXPECT_THAT(fier.attended_tokens(), ElementsAre(1, 3, 5));
}

// One token whose probability is .6 of a head that gives 99 % to the sink, and two of a head that attends candidates
// alone: over candidates the first head's token wins, over the attention the second's do.
//
//   token       0 (sink)   1      2      3
//   head A      .99        .01    0      0
//   head B      0          0      .6     .4
TEST(WorkedExample, TheOracleOverAttentionCountsWhatSinksTake) {
  const float scale = std::sqrt(8.0f);
  const std::vector<Pair> keys = {{10 * scale, -30},
                                  {(10 + std::log(0.01f)) * scale, -30},
                                  {-30, (10 + std::log(0.6f)) * scale},
                                  {-30, (10 + std::log(0.4f)) * scale}};
  const auto best = [&](const char* overrides) {
    Example oracle("oracle", {.budget = 3, .sink = 1, .recent = 1}, overrides, 2);
    oracle.append(keys);
    return oracle.step({{1, 0}, {0, 1}});
  };
  EXPECT_THAT(best("domain=candidates"), ElementsAre(1));
  EXPECT_THAT(best("domain=attention"), ElementsAre(2));
}

}  // namespace
}  // namespace mneme
