// Channels far wider than the others, as QKV biases and outlier channels make them: what indexes still find. A channel
// of the keys is scaled by s and the same of the queries by 1 / s, so that the true scores are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "src/selection/index/one_bit.h"
#include "src/selection/summary/moments.h"
#include "src/selection/summary/sketch.h"
#include "tests/selection/index/key_testing.h"

namespace mneme {
namespace {

constexpr std::int32_t kDim = 64, kPage = 32, kPages = 64, kTop = 64;

struct Case {
  std::vector<float> keys, q;  // [tokens, D], [n, D]
};

// Keys that vary in few directions, as those of models: page means and tokens around them with a spectrum of 1 / i.
Case make_case(float scale) {
  std::mt19937 rng(11);
  const std::vector<float> turn = normal_vector(std::size_t{kDim} * kDim, rng);
  Case c;
  for (std::int32_t p = 0; p < kPages; ++p) {
    const std::vector<float> mean = normal_vector(kDim, rng);
    for (std::int32_t t = 0; t < kPage; ++t) {
      const std::vector<float> z = normal_vector(kDim, rng);
      for (std::int32_t i = 0; i < kDim; ++i) {
        float x = 0.5f * mean[i];
        for (std::int32_t j = 0; j < kDim; ++j) x += turn[i * kDim + j] * z[j] / static_cast<float>(1 + j);
        c.keys.push_back(x * (i == 7 ? scale : 1.0f));
      }
    }
  }
  c.q = normal_vector(std::size_t{8} * kDim, rng);
  for (std::int32_t g = 0; g < 8; ++g) c.q[g * kDim + 7] /= scale;
  return c;
}

std::set<std::int32_t> best(const float* scores, std::int32_t n, std::int32_t k) {
  std::vector<std::int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  return {order.begin(), order.begin() + k};
}

// Share of the true best that the best by `scores` are: [8, n] both.
double recall(const std::vector<float>& truth, const std::vector<float>& scores, std::int32_t k) {
  const auto n = static_cast<std::int32_t>(truth.size() / 8);
  double found = 0;
  for (std::int32_t g = 0; g < 8; ++g) {
    const auto a = best(truth.data() + g * n, n, k), b = best(scores.data() + g * n, n, k);
    for (const std::int32_t t : a) found += b.contains(t) ? 1.0 : 0.0;
  }
  return found / (8 * k);
}

float alpha() {
  return 1.0f / std::sqrt(static_cast<float>(kDim));
}

std::vector<float> true_tokens(const Case& c) {
  std::vector<float> scores;
  for (std::int32_t g = 0; g < 8; ++g)
    for (std::int32_t t = 0; t < kPages * kPage; ++t)
      scores.push_back(
          std::inner_product(c.keys.begin() + t * kDim, c.keys.begin() + (t + 1) * kDim, c.q.begin() + g * kDim, 0.0f));
  return scores;
}

std::vector<float> true_pages(const Case& c) {
  const std::vector<float> tokens = true_tokens(c);
  std::vector<float> pages;
  for (std::size_t p = 0; p < tokens.size() / kPage; ++p) {
    double sum = 0;
    for (std::int32_t t = 0; t < kPage; ++t) sum += std::exp(double{alpha()} * tokens[p * kPage + t]);
    pages.push_back(static_cast<float>(std::log(sum)));
  }
  return pages;
}

SummaryScores task(const Case& c, const std::vector<float>& frame, const std::vector<std::byte>& entries,
                   std::vector<float>& scores, std::int64_t stride) {
  scores.resize(8 * stride);
  return {.q = c.q.data(),
          .frame = frame.data(),
          .entries = entries.data(),
          .n = kPages,
          .group = 8,
          .head_dim = kDim,
          .page = kPage,
          .alpha = alpha(),
          .scores = scores.data(),
          .stride = stride};
}

double sketch_recall(const Case& c, std::int32_t r) {
  std::vector<float> frame(sketch_frame_floats(kDim, r)), scores;
  sketch_fit_cpu(c.keys.data(), kPages, kPage, kDim, r, frame.data());
  std::vector<std::byte> entries(sketch_entry_bytes(kDim, kPage, r) * kPages);
  for (std::int32_t p = 0; p < kPages; ++p)
    sketch_build_cpu(c.keys.data() + p * kPage * kDim, kPage, kDim, r, frame.data(),
                     entries.data() + p * sketch_entry_bytes(kDim, kPage, r));
  sketch_score_cpu(task(c, frame, entries, scores, kPages * kPage), r, true);
  return recall(true_tokens(c), scores, kTop);
}

double centroids_recall(const Case& c, std::int32_t k) {
  std::vector<float> frame(centroids_frame_floats(kDim)), scores;
  centroids_fit_cpu(c.keys.data(), kPages, kPage, kDim, k, frame.data());
  std::vector<std::byte> entries(centroids_entry_bytes(kDim, k) * kPages);
  for (std::int32_t p = 0; p < kPages; ++p)
    centroids_build_cpu(c.keys.data() + p * kPage * kDim, kPage, kDim, k, frame.data(),
                        entries.data() + p * centroids_entry_bytes(kDim, k));
  centroids_score_cpu(task(c, frame, entries, scores, kPages), k);
  return recall(true_pages(c), scores, 8);
}

double one_bit_recall(const Case& c) {
  const AttentionShape shape{.group = 8, .head_dim = kDim, .kv_dtype = DType::kBF16, .scale = 1.0f};
  Keys keys(kPages * kPage, shape);
  for (std::int32_t t = 0; t < kPages * kPage; ++t)
    for (std::int32_t i = 0; i < kDim; ++i) keys.set(t, i, c.keys[t * kDim + i]);
  const std::size_t bytes = one_bit_group_bytes(kDim, kPage);
  std::vector<std::byte> groups(bytes * kPages);
  for (std::int32_t p = 0; p < kPages; ++p) {
    const KvRun run = keys.run(p * kPage, kPage);
    one_bit_build_cpu({&run, 1}, shape, kPage, OneBitLevels::kMinMax, groups.data() + p * bytes);
  }
  std::vector<float> scores(8 * kPages * kPage);
  one_bit_score_cpu(c.q.data(), shape, groups.data(), kPages, kPage, scores.data(), kPages * kPage);
  return recall(true_tokens(c), scores, kTop);
}

// Summaries store in units of their directions and channels: a wide channel takes no bits of the others.
//
//   recall of the true 64 of 2,048 tokens, of the true 8 of 64 pages    as they are   20 times   256 times
//   sketch:12; 16 (tokens)                                              .824; .855    .816; .844  .754; .771
//   centroids:4; 8 (pages)                                              .797; .875    .797; .828  .406; .578
//   1-bit keys (tokens)                                                 .279          .273        .268
//
// At 256 times the distances of k-means are that channel's alone.
TEST(OutlierChannel, CostsSummariesLittle) {
  const Case plain = make_case(1.0f), wide = make_case(20.0f);
  for (const std::int32_t r : {12, 16}) {
    EXPECT_GE(sketch_recall(wide, r), sketch_recall(plain, r) - 0.08) << "sketch:" << r;
    EXPECT_GE(sketch_recall(make_case(256.0f), r), sketch_recall(plain, r) - 0.16) << "sketch:" << r;
  }
  for (const std::int32_t k : {4, 8})
    EXPECT_GE(centroids_recall(wide, k), centroids_recall(plain, k) - 0.1) << "centroids:" << k;
}

// 1-bit keys round all steps of a group to 1/256 of the largest: what narrow channels lose beside one 256 times as wide
// is about a point.
TEST(OutlierChannel, TakesFewOfOneBitKeysBits) {
  const double plain = one_bit_recall(make_case(1.0f));
  for (const float scale : {20.0f, 256.0f}) EXPECT_NEAR(one_bit_recall(make_case(scale)), plain, 0.05) << scale;
}

}  // namespace
}  // namespace mneme
