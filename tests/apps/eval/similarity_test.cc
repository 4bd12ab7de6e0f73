#include "apps/eval/similarity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "apps/eval/gate_record.h"
#include "src/methods/decode_attention.h"
#include "tests/apps/cut_texts.h"
#include "tests/apps/eval/tiny_engine.h"

namespace mneme::eval {
namespace {

using ::testing::HasSubstr;

constexpr MethodShape kShape{.n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .head_dim = 8, .kv_dtype = DType::kF16};

// One KV head of n random keys, kept as f32 too.
struct Keys {
  explicit Keys(std::int32_t n) : pool({1, 1, 8, DType::kF16}, 64), cache(pool), keys(n) {
    Rng rng(11);
    cache.extend(n);
    const std::vector<float> value(8, 0.0f);
    for (std::int32_t t = 0; t < n; ++t) {
      auto& k = keys[t];
      for (int c = 0; c < 8; ++c) k.push_back(static_cast<float>(static_cast<int>(rng.below(65)) - 32) / 16);
      store_kv(k.data(), value.data(), kShape.attention(), cache.token(0, 0, t));
    }
  }
  PagePool pool;
  SequenceCache cache;
  std::vector<std::vector<float>> keys;
};

// Indices of the k largest, larger index first among equals.
std::set<std::size_t> best(const std::vector<double>& scores, std::size_t k) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a > b; });
  return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k)};
}

double dot(const float* q, const std::vector<float>& k) {
  double sum = 0;
  for (std::size_t c = 0; c < k.size(); ++c) sum += q[c] * double{k[c]};
  return sum;
}

// The same query attends the same tokens; one that turned away attends others, and that is across a boundary.
TEST(Similarity, OverlapIsCountedWithinAndAcrossBoundaries) {
  Keys data(600);
  SimilarityObserver observer(kShape, {.recall_every = 1, .budgets = {64}, .top = 20, .boundary = 0.5f});
  std::vector<float> q(16), away(16);
  Rng rng(5);
  for (std::size_t i = 0; i < 16; ++i) {
    q[i] = static_cast<float>(rng.normal());
    away[i] = -q[i];
  }
  const std::vector<float> value(8, 0.0f);
  for (const float* query : {q.data(), q.data(), away.data(), away.data(), q.data()}) {
    observer.see(0, {.cache = &data.cache, .q = query}, kShape.attention());
    data.cache.extend(1);
    store_kv(value.data(), value.data(), kShape.attention(), data.cache.token(0, 0, data.cache.length() - 1));
  }
  EXPECT_EQ(observer.overlap(0).n_within, 2 * 2);
  EXPECT_EQ(observer.overlap(0).within, 1.0);
  EXPECT_EQ(observer.overlap(0).n_across, 2 * 2);
  EXPECT_EQ(observer.overlap(0).across, 0.0) << "of 512 tokens, the 20 best and the 20 worst";
}

// Recall counted by hand: min-max boxes over pages of 16, a budget of 64 tokens, 1-bit keys in groups of 128.
TEST(Similarity, RecallIsWhatCountingGives) {
  Keys data(600);  // 512 of them are looked at
  SimilarityObserver observer(kShape, {.recall_every = 1, .budgets = {64}, .top = 20});
  std::vector<float> q(16);
  Rng rng(5);
  for (float& x : q) x = static_cast<float>(static_cast<int>(rng.below(33)) - 16) / 8;
  observer.see(0, {.cache = &data.cache, .q = q.data()}, kShape.attention());

  double box = 0, bits = 0;
  for (int h = 0; h < 2; ++h) {
    const float* head = q.data() + h * 8;
    std::vector<double> exact, bound, one_bit;
    for (std::size_t t = 0; t < 512; ++t) exact.push_back(dot(head, data.keys[t]));
    for (std::size_t p = 0; p < 32; ++p) {
      double sum = 0;
      for (std::size_t c = 0; c < 8; ++c) {
        double largest = -1e9;
        for (std::size_t t = p * 16; t < p * 16 + 16; ++t)
          largest = std::max(largest, head[c] * double{data.keys[t][c]});
        sum += largest;
      }
      bound.push_back(sum);
    }
    for (std::size_t t = 0; t < 512; ++t) {
      double sum = 0;
      for (std::size_t c = 0; c < 8; ++c) {
        float low = 1e9f, high = -1e9f;
        for (std::size_t u = t / 128 * 128; u < t / 128 * 128 + 128; ++u) {
          low = std::min(low, data.keys[u][c]);
          high = std::max(high, data.keys[u][c]);
        }
        sum += head[c] * double{data.keys[t][c] >= (low + high) / 2 ? high : low};
      }
      one_bit.push_back(sum);
    }
    const auto truth = best(exact, 20), pages = best(bound, 4), tokens = best(one_bit, 64);
    for (std::size_t t : truth) {
      box += pages.contains(t / 16) ? 1 : 0;
      bits += tokens.contains(t) ? 1 : 0;
    }
  }
  ASSERT_GT(box, 0);
  ASSERT_LT(bits, 40);
  int compared = 0;
  for (const SimilarityObserver::Recall& r : observer.recalls()) {
    EXPECT_EQ(r.samples, 2);  // query heads
    if (r.index == "box, pages of 16") {
      EXPECT_NEAR(r.of[0], box / 40, 1e-12);
      EXPECT_NEAR(r.load_ratio, 2.0 / 16, 1e-12);
      ++compared;
    }
    if (r.index == "1-bit keys, groups of 128, min-max") {
      // Equal 1-bit scores are many with eight channels; the tie rule is the same, rounding may not be.
      EXPECT_NEAR(r.of[0], bits / 40, 0.026);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2);
}

TEST(Similarity, CosinesAreOfAdjacentStepsOnly) {
  Keys data(40);
  SimilarityObserver observer(kShape, {.recall_every = 0});
  std::vector<float> q(16, 0.0f);
  const auto step = [&](float angle0, float angle1) {
    data.cache.extend(1);
    q[0] = std::cos(angle0);
    q[1] = std::sin(angle0);
    q[8] = 3 * std::cos(angle1);
    q[9] = 3 * std::sin(angle1);
    observer.see(0, {.cache = &data.cache, .q = q.data()}, kShape.attention());
  };
  step(0.0f, 0.0f);
  step(0.5f, 1.0f);
  step(0.5f, 2.5f);
  ASSERT_EQ(observer.cosines(0, 0).size(), 2u);
  EXPECT_NEAR(observer.cosines(0, 0)[0], std::cos(0.5), 1e-6);
  EXPECT_NEAR(observer.cosines(0, 0)[1], 1.0, 1e-6);
  EXPECT_NEAR(observer.cosines(0, 1)[1], std::cos(1.5), 1e-6);
  EXPECT_NEAR(observer.gate_values(GatePool::kMean, 0)[0], (std::cos(0.5) + std::cos(1.0)) / 2, 1e-6);
  EXPECT_NEAR(observer.gate_values(GatePool::kMax, 0)[0], std::cos(0.5), 1e-6);
  EXPECT_NEAR(observer.gate_values(GatePool::kAny, 0)[0], std::cos(1.0), 1e-6);
  EXPECT_TRUE(observer.gate_values(GatePool::kMean, 1).empty());
  data.cache.extend(1);  // a token that nobody asked a query for
  step(0.5f, 2.5f);
  EXPECT_EQ(observer.cosines(0, 0).size(), 2u);
  observer.forget_sequences();
  step(0.5f, 2.5f);
  EXPECT_EQ(observer.cosines(0, 0).size(), 2u);
}

TEST(Similarity, AModelsRunFillsEveryTable) {
  TinyEngine tiny;
  SimilarityObserver observer(tiny.engine->method_shape(), {.recall_every = 4, .budgets = {64, 512}});
  tiny.engine->set_observer(&observer);
  tiny.answer(tiny.random_tokens(600, 1), 20, nullptr);
  tiny.engine->set_observer(nullptr);
  for (std::int32_t l = 0; l < 2; ++l)
    for (std::int32_t h = 0; h < 4; ++h) EXPECT_EQ(observer.cosines(l, h).size(), 19u);
  for (const SimilarityObserver::Recall& r : observer.recalls()) {
    EXPECT_EQ(r.samples, 5 * 2 * 4) << r.index;  // steps, layers, query heads
    EXPECT_GT(r.of[0], 0.1) << r.index;
    EXPECT_LE(r.of[0], 1.0) << r.index;
    EXPECT_DOUBLE_EQ(r.of[1], 1.0) << r.index << ": all 512 tokens selected";
  }
  const std::string tables = similarity_tables(observer);
  EXPECT_THAT(tables, HasSubstr("| 1.0 | 100.0 % |"));
  EXPECT_THAT(tables, HasSubstr("box, pages of 32"));
  const nlohmann::json json = similarity_json(observer);
  EXPECT_EQ(json["cosines"].size(), 2u);
  EXPECT_EQ(json["recalls"][0]["recall"]["512"], 1.0);
  const std::string svg = similarity_svg(observer);
  EXPECT_THAT(svg, ::testing::StartsWith("<svg"));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_THAT(cut_texts(svg), ::testing::IsEmpty());
}

}  // namespace
}  // namespace mneme::eval
