// Page summaries against their specification, on the shapes that hurt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "src/selection/summary/centroids.h"
#include "src/selection/summary/half_values.h"
#include "src/selection/summary/moments.h"
#include "src/selection/summary/sketch.h"
#include "src/selection/summary/spread.h"
#include "src/selection/summary/summary_index.h"
#include "tests/ops/simd/each_target.h"
#include "tests/selection/index/key_testing.h"

namespace mneme {
namespace {

// Keys of pages around means of their own, some channels 20 times as wide as others.
std::vector<float> pages_of_keys(std::int32_t n_pages, std::int32_t page, std::int32_t dim, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> keys;
  for (std::int32_t p = 0; p < n_pages; ++p) {
    const std::vector<float> mean = normal_vector(dim, rng);
    for (std::int32_t t = 0; t < page; ++t)
      for (std::int32_t c = 0; c < dim; ++c) keys.push_back((c % 5 == 0 ? 20.0f : 1.0f) * (mean[c] + normal(rng)));
  }
  return keys;
}

struct Form {
  const char* name;
  std::int32_t page, dim, k;
};

// One kind of summary: its frame, entries and scores by the fast form and by the reference.
struct Kind {
  std::size_t entry_bytes;
  std::int64_t frame_floats;
  void (*fit[2])(const Form&, const float* keys, std::int32_t n_pages, float* frame);
  void (*build[2])(const Form&, const float* keys, const float* frame, std::byte* entry);
  void (*score[2])(const Form&, const SummaryScores&);
  std::int32_t per_entry = 1;
};

Kind centroids(const Form& f) {
  return {.entry_bytes = centroids_entry_bytes(f.dim, f.k),
          .frame_floats = centroids_frame_floats(f.dim),
          .fit = {[](const Form& g, const float* keys, std::int32_t n, float* out) {
                    centroids_fit_cpu(keys, n, g.page, g.dim, g.k, out);
                  },
                  [](const Form& g, const float* keys, std::int32_t n, float* out) {
                    centroids_fit_ref(keys, n, g.page, g.dim, g.k, out);
                  }},
          .build = {[](const Form& g, const float* keys, const float* frame, std::byte* out) {
                      centroids_build_cpu(keys, g.page, g.dim, g.k, frame, out);
                    },
                    [](const Form& g, const float* keys, const float* frame, std::byte* out) {
                      centroids_build_ref(keys, g.page, g.dim, g.k, frame, out);
                    }},
          .score = {[](const Form& g, const SummaryScores& t) { centroids_score_cpu(t, g.k); },
                    [](const Form& g, const SummaryScores& t) { centroids_score_ref(t, g.k); }}};
}

Kind sketch(const Form& f, bool by_token) {
  Kind kind{.entry_bytes = sketch_entry_bytes(f.dim, f.page, f.k),
            .frame_floats = sketch_frame_floats(f.dim, f.k),
            .fit = {[](const Form& g, const float* keys, std::int32_t n, float* out) {
                      sketch_fit_cpu(keys, n, g.page, g.dim, g.k, out);
                    },
                    [](const Form& g, const float* keys, std::int32_t n, float* out) {
                      sketch_fit_ref(keys, n, g.page, g.dim, g.k, out);
                    }},
            .build = {[](const Form& g, const float* keys, const float* frame, std::byte* out) {
                        sketch_build_cpu(keys, g.page, g.dim, g.k, frame, out);
                      },
                      [](const Form& g, const float* keys, const float* frame, std::byte* out) {
                        sketch_build_ref(keys, g.page, g.dim, g.k, frame, out);
                      }},
            .score = {[](const Form& g, const SummaryScores& t) { sketch_score_cpu(t, g.k, false); },
                      [](const Form& g, const SummaryScores& t) { sketch_score_ref(t, g.k, false); }},
            .per_entry = 1};
  if (!by_token) return kind;
  kind.score[0] = [](const Form& g, const SummaryScores& t) { sketch_score_cpu(t, g.k, true); };
  kind.score[1] = [](const Form& g, const SummaryScores& t) { sketch_score_ref(t, g.k, true); };
  kind.per_entry = f.page;
  return kind;
}

Kind moments(const Form& f) {
  return {.entry_bytes = moments_entry_bytes(f.dim),
          .frame_floats = 0,
          .fit = {[](const Form&, const float*, std::int32_t, float*) {},
                  [](const Form&, const float*, std::int32_t, float*) {}},
          .build = {[](const Form& g, const float* keys, const float*, std::byte* out) {
                      moments_build_cpu(keys, g.page, g.dim, out);
                    },
                    [](const Form& g, const float* keys, const float*, std::byte* out) {
                      moments_build_ref(keys, g.page, g.dim, out);
                    }},
          .score = {[](const Form&, const SummaryScores& t) { moments_score_cpu(t); },
                    [](const Form&, const SummaryScores& t) { moments_score_ref(t); }}};
}

Kind kind_of(const Form& f) {
  const std::string_view name = f.name;
  return name == "centroids" ? centroids(f) : name == "moments" ? moments(f) : sketch(f, name == "tokens");
}

class Summary : public ::testing::TestWithParam<Form> {
 protected:
  // [entries, entry_bytes] of all pages, by form 0 (fast) or 1 (reference), in a frame of form `frame_by`.
  std::vector<std::byte> build(int by, const std::vector<float>& keys, const std::vector<float>& frame) const {
    const Form& f = GetParam();
    const Kind kind = kind_of(f);
    const std::int64_t page_floats = std::int64_t{f.page} * f.dim, n = std::ssize(keys) / page_floats;
    std::vector<std::byte> entries(kind.entry_bytes * n);
    for (std::int64_t p = 0; p < n; ++p)
      kind.build[by](f, keys.data() + p * page_floats, frame.data(), entries.data() + p * kind.entry_bytes);
    return entries;
  }
  std::vector<float> fit(int by, const std::vector<float>& keys) const {
    const Form& f = GetParam();
    std::vector<float> frame(kind_of(f).frame_floats);
    kind_of(f).fit[by](f, keys.data(), static_cast<std::int32_t>(std::ssize(keys) / (f.page * f.dim)), frame.data());
    return frame;
  }
  std::vector<float> score(int by, const std::vector<std::byte>& entries, const std::vector<float>& frame,
                           const std::vector<float>& q) const {
    const Form& f = GetParam();
    const Kind kind = kind_of(f);
    const auto group = static_cast<std::int32_t>(std::ssize(q) / f.dim);
    const auto n = static_cast<std::int64_t>(entries.size() / kind.entry_bytes), stride = n * kind.per_entry + 3;
    std::vector<float> scores(group * stride, -7.0f);
    kind.score[by](f, {.q = q.data(),
                       .frame = frame.data(),
                       .entries = entries.data(),
                       .n = n,
                       .group = group,
                       .head_dim = f.dim,
                       .page = f.page,
                       .alpha = 1.0f / std::sqrt(static_cast<float>(f.dim)),
                       .scores = scores.data(),
                       .stride = stride});
    return scores;
  }
};

TEST_P(Summary, ScoresAsTheReference) {
  each_target([&] {
    std::mt19937 rng(4);
    for (const std::int32_t n_pages : {0, 1, 3, 9}) {
      const std::vector<float> keys = pages_of_keys(n_pages, GetParam().page, GetParam().dim, rng);
      const std::vector<float> frame = fit(1, keys);
      const std::vector<std::byte> entries = build(1, keys, frame);
      for (const std::int32_t group : {1, 3, 4, 5, 8}) {
        const std::vector<float> q = normal_vector(group * GetParam().dim, rng);
        const std::vector<float> got = score(0, entries, frame, q), expected = score(1, entries, frame, q);
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_LE(std::abs(got[i] - expected[i]), 2e-4 * (1 + std::abs(expected[i]))) << n_pages << " G " << group;
      }
    }
  });
}

// Codes differ only where a value lies within rounding of the middle between two: scores stay close.
TEST_P(Summary, IsBuiltAsTheReference) {
  each_target([&] {
    std::mt19937 rng(5);
    const Form& f = GetParam();
    const std::vector<float> keys = pages_of_keys(6, f.page, f.dim, rng);
    const std::vector<float> frame = fit(1, keys), fast_frame = fit(0, keys);
    const std::vector<std::byte> got = build(0, keys, frame), expected = build(1, keys, frame);
    std::size_t same = 0;
    for (std::size_t i = 0; i < got.size(); ++i) same += got[i] == expected[i] ? 1 : 0;
    EXPECT_GE(static_cast<double>(same), 0.95 * static_cast<double>(got.size()));
    // The fast form's own frame gives the same scores: a basis may turn within its subspace, and 4 bits see that.
    const std::vector<float> q = normal_vector(f.dim, rng);
    const std::vector<float> own = score(0, build(0, keys, fast_frame), fast_frame, q),
                             theirs = score(1, expected, frame, q);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      error += std::pow(own[i] - theirs[i], 2);
      size += std::pow(theirs[i], 2);
    }
    EXPECT_LE(std::sqrt(error / size), 0.02);
  });
}

TEST_P(Summary, EqualPagesScoreEqualAndANaNStaysInItsPage) {
  std::mt19937 rng(6);
  const Form& f = GetParam();
  std::vector<float> keys = pages_of_keys(1, f.page, f.dim, rng);
  const std::vector<float> page = keys;
  for (int copies = 0; copies < 4; ++copies) keys.insert(keys.end(), page.begin(), page.end());
  keys[2 * page.size() + 3] = NAN;  // a key of page 2
  const std::vector<float> frame = fit(0, keys);
  const std::vector<float> scores = score(0, build(0, keys, frame), frame, normal_vector(f.dim, rng));
  const std::int32_t per = kind_of(f).per_entry;
  for (std::int32_t p = 1; p < 5; ++p)
    for (std::int32_t i = 0; i < per; ++i) {
      if (p == 2)
        EXPECT_TRUE(std::isnan(scores[p * per + i]));
      else
        EXPECT_EQ(scores[p * per + i], scores[i]) << p;
    }
}

TEST_P(Summary, EqualKeysAreRepresentedExactly) {
  const Form& f = GetParam();
  const std::vector<float> keys(std::size_t{3} * f.page * f.dim, 0.5f);
  const std::vector<float> frame = fit(0, keys), q(f.dim, 1.0f);
  const float alpha = 1.0f / std::sqrt(static_cast<float>(f.dim)), dot = 0.5f * static_cast<float>(f.dim);
  const float tokens = std::string_view(f.name) == "tokens" ? 1.0f : static_cast<float>(f.page);
  const std::vector<float> scores = score(0, build(0, keys, frame), frame, q);
  // moments: 0.5 in 8 bits of its own scale is exact up to rounding.
  EXPECT_NEAR(scores[0], dot + std::log(tokens) / alpha, 1e-3 * dot);
}

INSTANTIATE_TEST_SUITE_P(Forms, Summary,
                         ::testing::Values(Form{"centroids", 32, 64, 8}, Form{"centroids", 16, 128, 2},
                                           Form{"centroids", 8, 8, 8}, Form{"centroids", 7, 24, 1},
                                           Form{"centroids", 128, 16, 16}, Form{"sketch", 32, 64, 12},
                                           Form{"sketch", 8, 8, 8}, Form{"sketch", 16, 128, 16},
                                           Form{"tokens", 32, 64, 12}, Form{"tokens", 32, 8, 3},
                                           Form{"moments", 32, 64, 0}, Form{"moments", 1, 8, 0},
                                           Form{"moments", 33, 40, 0}),
                         [](const auto& test) {
                           return std::string(test.param.name) + "_" + std::to_string(test.param.page) + "_" +
                                  std::to_string(test.param.dim) + "_" + std::to_string(test.param.k);
                         });

// Corners of a square twice each, in channels 0 and 1 of 8. Seeds are corner 0, the one across (3 before its copy 7),
// and of the two that are equally far from both the smaller index, 1: corner 2 goes to 0.
TEST(Centroids, OfEquallyFarKeysTheSmallerIndexIsTheNextSeed) {
  constexpr std::int32_t kKeys = 8, kChannels = 8, kCentroids = 3;
  std::vector<float> keys(kKeys * kChannels, 0.0f);
  for (int t = 0; t < kKeys; ++t) {
    keys[t * kChannels] = t % 2 == 0 ? -1.0f : 1.0f;
    keys[t * kChannels + 1] = t % 4 < 2 ? -1.0f : 1.0f;
  }
  std::vector<float> frame(centroids_frame_floats(kChannels));
  centroids_fit_ref(keys.data(), 1, kKeys, kChannels, kCentroids, frame.data());
  std::vector<std::byte> entry(centroids_entry_bytes(kChannels, kCentroids)), expected(entry.size());
  centroids_build_cpu(keys.data(), kKeys, kChannels, kCentroids, frame.data(), entry.data());
  centroids_build_ref(keys.data(), kKeys, kChannels, kCentroids, frame.data(), expected.data());
  EXPECT_EQ(entry, expected);
}

// Units of every index, and the entries that a query reads for them.
TEST(SummaryIndex, BytesReadAreThoseOfTheEntriesThatAreScored) {
  const AttentionShape shape{.group = 2, .head_dim = 64, .kv_dtype = DType::kBF16};
  const auto expect_bytes = [&](const std::unique_ptr<UnitIndex>& index, std::int32_t unit) {
    constexpr std::int32_t kTokens = 320;
    const std::size_t entries = kTokens / index->entry_tokens();
    EXPECT_EQ(index->bytes_read(kTokens / unit, shape), entries * index->entry_bytes(shape)) << "unit " << unit;
  };
  for (const std::int32_t unit : {16, 32}) {
    expect_bytes(make_centroids_index(4, unit), unit);
    expect_bytes(make_sketch_index(8, unit), unit);
    expect_bytes(make_moments_index(unit), unit);
  }
  expect_bytes(make_sketch_index(8, 1), 1);
}

// The example of docs/design/selector.md, alpha = 1/sqrt(2), q = (2, 1), in channels 0 and 1 of 8:
//
//   keys (+-1, 0), (+-1, 2): mean (0, 1), variances (1, 1), m 0.7071, v 2.5; score (m + log 4 + 1.25) / alpha
//   keys (3, -3), (-3, 3) twice each: v 22.5 > 2 log 4 = 2.7726: the gain is 6.512, not 11.25
TEST(Moments, GrowLinearlyBeyondTheLargestOfNSamples) {
  const float alpha = 1.0f / std::sqrt(2.0f);
  std::vector<float> q(8, 0.0f);
  q[0] = 2, q[1] = 1;
  const auto log_sum_exp = [&](const std::vector<std::pair<float, float>>& pairs) {
    std::vector<float> keys(8 * pairs.size(), 0.0f);
    for (std::size_t t = 0; t < pairs.size(); ++t) keys[8 * t] = pairs[t].first, keys[8 * t + 1] = pairs[t].second;
    std::vector<std::byte> entry(moments_entry_bytes(8));
    moments_build_cpu(keys.data(), 4, 8, entry.data());
    float score = 0;
    moments_score_cpu({.q = q.data(),
                       .entries = entry.data(),
                       .n = 1,
                       .group = 1,
                       .head_dim = 8,
                       .page = 4,
                       .alpha = alpha,
                       .scores = &score,
                       .stride = 1});
    return score * alpha;
  };
  EXPECT_NEAR(log_sum_exp({{1, 0}, {-1, 0}, {1, 2}, {-1, 2}}), 3.3434, 2e-3);
  EXPECT_NEAR(log_sum_exp({{3, -3}, {-3, 3}, {3, -3}, {-3, 3}}), 7.8983, 2e-3);
}

// The spread's byte is within 6 %, and 0 stays 0.
TEST(Spread, AVarianceFitsAByte) {
  EXPECT_EQ(decode_variance(variance_code(0.0f)), 0.0f);
  for (float v = 1e-5f; v < 1e6f; v *= 1.37f) EXPECT_NEAR(decode_variance(variance_code(v)) / v, 1.0f, 0.06f) << v;
}

}  // namespace
}  // namespace mneme
