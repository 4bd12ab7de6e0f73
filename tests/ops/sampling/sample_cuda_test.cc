// Sampling on the device against the specification on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "src/ops/norm_rope/pointwise_cuda.h"
#include "src/ops/sampling/sample_cuda.h"
#include "src/sampler/sampler.h"
#include "src/sampler/truncated_distribution.h"
#include "tests/cuda/cuda_testing.h"

namespace mneme {
namespace {

class CudaSampleTest : public CudaTest {
 protected:
  struct Drawn {
    std::vector<std::int32_t> token;
    std::vector<float> logprob;
  };
  Drawn draw(const std::vector<float>& row, const std::vector<SamplingRule>& rules) {
    const auto n = static_cast<std::int32_t>(rules.size()), vocab = static_cast<std::int32_t>(row.size());
    std::vector<float> all;
    for (std::int32_t i = 0; i < n; ++i) all.insert(all.end(), row.begin(), row.end());
    const DeviceArray<float> logits(all), logprob(rules.size());
    const DeviceArray<std::int32_t> token(rules.size());
    const DeviceArray<SamplingRule> there(rules);
    const CudaContext context{.stream = stream.get()};
    argmax_cuda(logits.data(), n, vocab, token.data(), logprob.data(), context);
    sample_cuda(logits.data(), there.data(), n, vocab, token.data(), logprob.data(), context);
    return {token.get(stream), logprob.get(stream)};
  }
  // Every sampled token is the one whose cumulative interval contains u, up to the rounding of weights at its ends.
  void expect_draws(const std::vector<float>& row, const SamplingOptions& o) {
    std::vector<SamplingRule> rules;
    for (int i = 0; i < 40; ++i)
      rules.push_back({o.temperature, o.top_k, o.top_p, o.min_p,
                       i == 0    ? 0.0
                       : i == 39 ? 0x1.fffffffffffffp-1
                                 : std::fmod(i * 0.6180339887, 1.0)});
    const std::vector<TokenWeight> truncated = truncated_distribution_ref(row, o);
    double total = 0;
    for (const TokenWeight& w : truncated) total += w.weight;
    const Drawn got = draw(row, rules);
    for (std::size_t i = 0; i < rules.size(); ++i) {
      double before = 0;
      bool found = false;
      for (const TokenWeight& w : truncated) {
        const double after = before + w.weight / total;
        if (w.token == got.token[i]) {
          found = true;
          EXPECT_GE(rules[i].u, before - 1e-5) << "token " << w.token << " of " << truncated.size();
          EXPECT_LE(rules[i].u, after + 1e-5) << "token " << w.token << " of " << truncated.size();
          EXPECT_GT(w.weight, 0.0);
        }
        before = after;
      }
      ASSERT_TRUE(found) << "token " << got.token[i] << " is none of " << truncated.size() << " remaining tokens, u "
                         << rules[i].u << ", temperature " << o.temperature << ", top_k " << o.top_k << ", top_p "
                         << o.top_p << ", min_p " << o.min_p;
      const float want = log_probability(row, got.token[i]);
      ASSERT_LE(std::abs(got.logprob[i] - want), 2e-4f + 1e-5f * std::abs(want));
    }
  }
};

std::vector<SamplingOptions> rules_to_try(int vocab) {
  std::vector<SamplingOptions> all;
  const auto add = [&](float temperature, int k, float p, float min_p) {
    SamplingOptions o;
    o.temperature = temperature, o.top_k = k, o.top_p = p, o.min_p = min_p;
    all.push_back(o);
  };
  for (const float t : {0.05f, 0.7f, 1.0f, 30.0f}) {
    add(t, 0, 1, 0);
    add(t, 1, 1, 0);
    add(t, 50, 1, 0);
    add(t, vocab - 1, 1, 0);
    add(t, vocab + 5, 0.5f, 0);
    add(t, 0, 0.9f, 0);
    add(t, 0, 0, 0);
    add(t, 0, 1, 0.1f);
    add(t, 40, 0.8f, 0.02f);
    add(t, 1, 0.99f, 1);
  }
  return all;
}

TEST_F(CudaSampleTest, SamplesAsTheReference) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 3);
  for (const int vocab : {1, 2, 31, 1000, 32768, 128256}) {
    std::vector<float> row(static_cast<std::size_t>(vocab));
    for (float& v : row) v = normal(rng);
    for (const SamplingOptions& o : rules_to_try(vocab)) expect_draws(row, o);
  }
}

// More equal logits than are ever sorted, so that the cutoff is among them: the smaller ids remain.
TEST_F(CudaSampleTest, EqualLogitsAreCutByTheirIds) {
  for (const int vocab : {4097, 20000, 128256}) {
    std::vector<float> row(static_cast<std::size_t>(vocab), 1.5f);
    for (const SamplingOptions& o : rules_to_try(vocab)) expect_draws(row, o);
    for (std::size_t i = 0; i < row.size(); i += 3) row[i] = -0.0f;
    for (std::size_t i = 1; i < row.size(); i += 3) row[i] = 0.0f;
    for (const SamplingOptions& o : rules_to_try(vocab)) expect_draws(row, o);
  }
}

TEST_F(CudaSampleTest, WhatIsNotANumberIsNothing) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> row(1000, -kInf);
  row[17] = 2, row[400] = kNaN, row[900] = 1;
  SamplingOptions o;
  o.temperature = 1;
  expect_draws(row, o);
  o.top_k = 700;
  expect_draws(row, o);
  o.top_k = 0, o.top_p = 0.999f;
  expect_draws(row, o);
  row[30] = row[31] = kInf;
  std::vector<SamplingRule> rules;
  for (const double u : {0.0, 0.4, 0.6, 0.99}) rules.push_back({1, 0, 1, 0, u});
  EXPECT_EQ(draw(row, rules).token, (std::vector<std::int32_t>{30, 30, 31, 31}));
  EXPECT_EQ(draw(std::vector<float>(500, kNaN), rules).token, (std::vector<std::int32_t>{0, 0, 0, 0}));
}

// More ids than a thread block, the first and the last of a row, and several rows; all other logits stay.
TEST_F(CudaSampleTest, ForbiddenTokensAreImpossibleInEveryRow) {
  const CudaContext context{.stream = stream.get()};
  constexpr float kImpossible = -std::numeric_limits<float>::infinity();
  for (const std::int32_t vocab : {64, 151936}) {
    for (const std::int32_t n : {1, 3}) {
      std::vector<std::int32_t> ids;
      for (std::int32_t id = 0; id < vocab; id += id < vocab - 700 ? 611 : 1) ids.push_back(id);
      std::vector<float> want(static_cast<std::size_t>(n) * static_cast<std::size_t>(vocab));
      for (std::size_t i = 0; i < want.size(); ++i) want[i] = static_cast<float>(i % 1013);
      want[5] = std::numeric_limits<float>::infinity();
      const DeviceArray<float> logits(want);
      const DeviceArray<std::int32_t> there(ids);
      forbid_tokens_cuda(logits.data(), there.data(), 0, n, vocab, context);
      EXPECT_EQ(logits.get(stream), want) << "none";
      for (std::int32_t row = 0; row < n; ++row)
        for (const std::int32_t id : ids) want[static_cast<std::size_t>(row) * vocab + id] = kImpossible;
      forbid_tokens_cuda(logits.data(), there.data(), static_cast<std::int32_t>(ids.size()), n, vocab, context);
      EXPECT_EQ(logits.get(stream), want) << vocab << ", " << n << " rows";
    }
  }
}

TEST_F(CudaSampleTest, SoftCapIsTheCapTimesTanh) {
  for (const std::int32_t n : {1, 3}) {
    constexpr std::int32_t kVocab = 1531;
    std::vector<float> logits(static_cast<std::size_t>(n) * kVocab);
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 311) - 155.0f;
    logits.back() = -std::numeric_limits<float>::infinity();
    const DeviceArray<float> there(logits);
    soft_cap_cuda(there.data(), 30.0f, n, kVocab, {.stream = stream.get()});
    const std::vector<float> got = there.get(stream);
    for (std::size_t i = 0; i < logits.size(); ++i)
      ASSERT_NEAR(got[i], 30.0 * std::tanh(logits[i] / 30.0), 1e-5) << logits[i];
  }
}

// Rows that are not sampled keep argmax.
TEST_F(CudaSampleTest, RowsWithoutTemperatureStayAsTheyAre) {
  std::vector<float> row(300, 0.0f);
  row[123] = 0.5f;
  const Drawn got = draw(row, {{0, 0, 1, 0, 0.9}, {1, 1, 1, 0, 0.9}, {0, 5, 0.5f, 0, 0.1}});
  EXPECT_EQ(got.token, (std::vector<std::int32_t>{123, 123, 123}));
}

}  // namespace
}  // namespace mneme
