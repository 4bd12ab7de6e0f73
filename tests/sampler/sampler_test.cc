#include "src/sampler/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "mneme/error.h"

namespace mneme {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

SamplingOptions drawing(float temperature, std::uint64_t seed) {
  SamplingOptions o;
  o.temperature = temperature;
  o.seed = seed;
  return o;
}

std::vector<float> logs(std::vector<double> probabilities) {
  std::vector<float> x;
  for (double p : probabilities) x.push_back(static_cast<float>(std::log(p)));
  return x;
}

// Draws often and compares the counts with the probabilities by chi-square.
void expect_distribution(Sampler sampler, const std::vector<float>& logits, const std::vector<double>& expected) {
  constexpr int kDraws = 20000;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.next(logits).token];
  double chi2 = 0;
  int degrees = -1;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
      continue;
    }
    const double mean = kDraws * expected[i];
    chi2 += (counts[i] - mean) * (counts[i] - mean) / mean;
    ++degrees;
  }
  // Five standard deviations above the mean of the chi-square distribution; the seeds are fixed.
  EXPECT_LE(chi2, degrees + 5 * std::sqrt(2.0 * degrees));
}

TEST(Sampler, GreedyTakesTheLargestAndTheSmallerIdOfEquals) {
  Sampler s{SamplingOptions{}};
  EXPECT_EQ(s.next(std::vector<float>{1, 3, 2}).token, 1);
  EXPECT_EQ(s.next(std::vector<float>{1, 3, 2, 3}).token, 1);
  EXPECT_EQ(s.next(std::vector<float>(1000, -7)).token, 0);
  EXPECT_EQ(s.next(std::vector<float>{-5}).token, 0);
  EXPECT_EQ(s.draws(), 0u);
}

TEST(Sampler, LogprobIsThatOfTheUnmodifiedLogits) {
  const auto x = logs({0.1, 0.6, 0.3});
  SamplingOptions o;
  o.presence_penalty = 2;
  o.temperature = 0;
  Sampler s(o);
  EXPECT_NEAR(s.next(x).logprob, std::log(0.6), 1e-6);
  const auto second = s.next(x);  // 0.6 / e^2 = 0.08: now the third is largest
  EXPECT_EQ(second.token, 2);
  EXPECT_NEAR(second.logprob, std::log(0.3), 1e-6);

  SamplingOptions hot = drawing(3, 5);
  hot.top_k = 1;
  EXPECT_NEAR(Sampler(hot).next(x).logprob, std::log(0.6), 1e-6);
}

TEST(Sampler, LogprobOverALargeVocabularyIsExact) {
  Rng rng(3);
  std::vector<float> x(128256);
  for (float& v : x) v = static_cast<float>(rng.normal() * 4);
  double sum = 0;
  for (float v : x) sum += std::exp(double{v});
  const auto sampled = Sampler{SamplingOptions{}}.next(x);
  const double exact = x[sampled.token] - std::log(sum);
  EXPECT_LE(std::abs(static_cast<double>(sampled.logprob) - exact), 1e-6);
}

TEST(Sampler, PenaltiesByHand) {
  // Prompt tokens: the repetition penalty alone. 2 / 2 = 1, -1 * 2 = -2.
  SamplingOptions o;
  o.repetition_penalty = 2;
  Sampler s(o);
  s.see_prompt(std::vector<std::int32_t>{0, 0, 2});
  EXPECT_EQ(s.next(std::vector<float>{2, 1.1f, -1}).token, 1);    // 1, 1.1, -2
  EXPECT_EQ(s.next(std::vector<float>{2, 1.9f, -1}).token, 0);    // 1, 0.95, -2: the answer counts as well
  EXPECT_EQ(s.next(std::vector<float>{-3, -4, -1.4f}).token, 2);  // -6, -8, -2.8

  // In prompt and answer: once. 2 / 2 = 1; a second time would make it 0.5.
  Sampler both(o);
  both.see_prompt(std::vector<std::int32_t>{0});
  EXPECT_EQ(both.next(std::vector<float>{2, 0.1f}).token, 0);
  EXPECT_EQ(both.next(std::vector<float>{2, 0.7f}).token, 0);

  // Presence penalty once, frequency penalty every time; prompt tokens do not count.
  SamplingOptions f;
  f.presence_penalty = 0.5f;
  f.frequency_penalty = 0.25f;
  Sampler t(f);
  t.see_prompt(std::vector<std::int32_t>{0, 0, 0});
  EXPECT_EQ(t.next(std::vector<float>{1, 0.9f}).token, 0);
  EXPECT_EQ(t.next(std::vector<float>{1, 0.2f}).token, 0);  // 0.25, 0.2
  EXPECT_EQ(t.next(std::vector<float>{1, 0.1f}).token, 1);  // 0, 0.1
  EXPECT_EQ(t.next(std::vector<float>{1, 0.7f}).token, 0);  // 0, 0.7 - 0.75
  SamplingOptions negative;
  negative.frequency_penalty = -1;
  Sampler n(negative);
  EXPECT_EQ(n.next(std::vector<float>{1, 0.5f}).token, 0);
  EXPECT_EQ(n.next(std::vector<float>{1, 1.5f}).token, 0);  // 2, 1.5
}

TEST(Sampler, SamplesFollowTheDistribution) {
  const auto x = logs({0.1, 0.5, 0.05, 0.2, 0.15});
  expect_distribution(Sampler(drawing(1, 1)), x, {0.1, 0.5, 0.05, 0.2, 0.15});

  SamplingOptions k = drawing(1, 2);
  k.top_k = 3;
  expect_distribution(Sampler(k), x, {0, 0.5 / 0.85, 0, 0.2 / 0.85, 0.15 / 0.85});
  SamplingOptions p = drawing(1, 3);
  p.top_p = 0.7f;
  expect_distribution(Sampler(p), x, {0, 0.5 / 0.7, 0, 0.2 / 0.7, 0});
  SamplingOptions m = drawing(1, 4);
  m.min_p = 0.2f;
  expect_distribution(Sampler(m), x, {0.1 / 0.95, 0.5 / 0.95, 0, 0.2 / 0.95, 0.15 / 0.95});

  const double squares = 0.01 + 0.25 + 0.0025 + 0.04 + 0.0225;
  expect_distribution(Sampler(drawing(0.5f, 5)), x,
                      {0.01 / squares, 0.25 / squares, 0.0025 / squares, 0.04 / squares, 0.0225 / squares});
  expect_distribution(Sampler(drawing(1, 6)), std::vector<float>(50, 0.0f), std::vector<double>(50, 0.02));
}

TEST(Sampler, SeedsReproduceAndCopiesGoOnAlike) {
  Rng rng(9);
  std::vector<std::vector<float>> rows(60, std::vector<float>(300));
  for (auto& row : rows) {
    for (float& v : row) v = static_cast<float>(rng.normal() * 2);
  }
  SamplingOptions o = drawing(1.2f, 42);
  o.top_k = 50;
  o.repetition_penalty = 1.3f;
  o.frequency_penalty = 0.4f;
  const auto answer = [&](Sampler& s, std::size_t begin, std::size_t end) {
    std::vector<std::int32_t> tokens;
    for (std::size_t i = begin; i < end; ++i) tokens.push_back(s.next(rows[i]).token);
    return tokens;
  };
  Sampler a(o), b(o);
  EXPECT_EQ(answer(a, 0, 30), answer(b, 0, 30));
  Sampler copy = a;
  const auto rest = answer(a, 30, 60);
  EXPECT_EQ(answer(copy, 30, 60), rest);

  // seed and draws are the whole state of a plain sampler.
  Sampler plain(drawing(1, 8)), restored(drawing(1, 999));
  answer(plain, 0, 20);
  restored.restore(plain.seed(), plain.draws());
  EXPECT_EQ(plain.draws(), 20u);
  EXPECT_EQ(answer(restored, 20, 60), answer(plain, 20, 60));

  SamplingOptions other = o;
  other.seed = 43;
  Sampler c(other), d(o);
  EXPECT_NE(answer(c, 0, 60), answer(d, 0, 60));
}

TEST(Sampler, WithoutASeedEveryOneDiffers) {
  SamplingOptions o;
  o.temperature = 1;
  EXPECT_NE(Sampler(o).seed(), Sampler(o).seed());
}

TEST(Sampler, NanAndInfinity) {
  const std::vector<float> none{kNan, -kInf, kNan}, some{kNan, -kInf, 1, kNan}, many{0, kInf, kNan, kInf};
  for (float temperature : {0.0f, 0.7f}) {
    SamplingOptions o = drawing(temperature, 1);
    o.top_p = 0.95f;
    Sampler s(o);
    EXPECT_EQ(s.next(none).token, 0);
    EXPECT_EQ(s.next(none).logprob, -kInf);
    EXPECT_EQ(s.next(some).token, 2);
    EXPECT_EQ(s.next(some).logprob, 0);
    const auto c = s.next(many);
    EXPECT_TRUE(c.token == 1 || (c.token == 3 && temperature > 0));
    EXPECT_NEAR(c.logprob, std::log(0.5), 1e-6);
  }
  // A penalty may produce infinities.
  SamplingOptions o;
  o.repetition_penalty = 1e-38f;
  Sampler s(o);
  s.see_prompt(std::vector<std::int32_t>{1});
  EXPECT_EQ(s.next(std::vector<float>{5, 4, 3}).token, 1);
}

TEST(Sampler, ATinyTemperatureIsGreedy) {
  Sampler s(drawing(1e-30f, 1));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(s.next(std::vector<float>{1, 1.0001f, 0.5f}).token, 1);
}

TEST(Sampler, WrongOptionsAreNamedWithRangeAndValue) {
  const auto expect_error = [](const std::function<void(SamplingOptions&)>& set, const std::string& message) {
    SamplingOptions o;
    set(o);
    try {
      Sampler s(o);
      ADD_FAILURE() << message;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kOption);
      EXPECT_EQ(e.what(), message);
    }
  };
  expect_error([](auto& o) { o.temperature = -1; }, "temperature: expected a number from 0, found -1");
  expect_error([](auto& o) { o.temperature = kNan; }, "temperature: expected a number from 0, found nan");
  expect_error([](auto& o) { o.temperature = kInf; }, "temperature: expected a number from 0, found inf");
  expect_error([](auto& o) { o.top_k = -3; }, "top_k: expected 0 (all) or a number of tokens, found -3");
  expect_error([](auto& o) { o.top_p = 1.5f; }, "top_p: expected a number from 0 to 1, found 1.5");
  expect_error([](auto& o) { o.min_p = -0.5f; }, "min_p: expected a number from 0 to 1, found -0.5");
  expect_error([](auto& o) { o.repetition_penalty = 0; },
               "repetition_penalty: expected a number larger than 0, found 0");
  expect_error([](auto& o) { o.presence_penalty = 2.5f; },
               "presence_penalty: expected a number from -2 to 2, found 2.5");
  expect_error([](auto& o) { o.frequency_penalty = kNan; },
               "frequency_penalty: expected a number from -2 to 2, found nan");
}

TEST(TopLogprobs, AreTheLargestInOrder) {
  const std::vector<float> x = {1, 3, kNan, 3, -kInf, 2};
  const auto top = top_logprobs(x, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].token, 1);  // of equal ones the smaller id
  EXPECT_EQ(top[1].token, 3);
  EXPECT_EQ(top[2].token, 5);
  for (const TokenLogprob& t : top) EXPECT_FLOAT_EQ(t.logprob, log_probability(x, t.token));
  EXPECT_EQ(top_logprobs(x, 100).size(), 4u);  // impossible tokens are not returned
  EXPECT_TRUE(top_logprobs(x, 0).empty());
  EXPECT_TRUE(top_logprobs(std::vector<float>{kNan, -kInf}, 2).empty());
}

TEST(Sampler, BiasMovesTheTokenAndNotTheLogprob) {
  const std::vector<float> x = {1, 3, 2};
  SamplingOptions o;
  o.logit_bias = {{.token = 1, .bias = -100}, {.token = 0, .bias = 1.5f}};
  const Sampler::SampledToken sampled = Sampler(o).next(x);
  EXPECT_EQ(sampled.token, 0);
  EXPECT_FLOAT_EQ(sampled.logprob, log_probability(x, 0));
  o.logit_bias = {{.token = -1, .bias = 0}};
  EXPECT_THROW(Sampler{o}, Error);
  o.logit_bias = {{.token = 1, .bias = kNan}};
  EXPECT_THROW(Sampler{o}, Error);
}

// Allows all tokens, then, behind the first one, only this one.
class FreeThenOne final : public TokenConstraint, public std::enable_shared_from_this<FreeThenOne> {
 public:
  explicit FreeThenOne(bool free) : free_(free) {}
  void allowed(std::span<std::uint64_t> mask) const override { mask[0] = free_ ? 7 : 2; }
  bool everything() const override { return free_; }
  std::shared_ptr<const TokenConstraint> after(std::int32_t) const override {
    return std::make_shared<const FreeThenOne>(false);
  }

 private:
  bool free_;
};

// Free text costs nothing: the device may sample. What it draws takes the constraint on, as what next() draws does.
TEST(Sampler, IsPlainWhereAConstraintAllowsEverything) {
  const std::vector<float> logits = {5, 1, 2};
  for (const bool on_device : {false, true}) {
    Sampler sampler(drawing(0, 1));
    sampler.constrain(std::make_shared<const FreeThenOne>(true));
    EXPECT_TRUE(sampler.is_plain());
    if (on_device) {
      sampler.drew(0);
    } else {
      EXPECT_EQ(sampler.next(logits).token, 0);
    }
    EXPECT_FALSE(sampler.is_plain());
    EXPECT_EQ(sampler.next(logits).token, 1);
  }
}

}  // namespace
}  // namespace mneme
