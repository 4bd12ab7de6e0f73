// k-means runs on the page's Gram matrix: after 32 x 32 products of keys, a round is additions.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/check.h"
#include "src/selection/summary/centroids.h"
#include "src/selection/summary/half_values.h"
#include "src/selection/summary/packed_dots.h"
#include "src/selection/summary/spread.h"

namespace mneme {
namespace {

constexpr int kRounds = 6;

// A page's keys by cluster.
struct PageClusters {
  std::vector<float> keys, gram, sums, means;  // keys less the page's mean [n, D]; [n, n]; [k, n]; centroids [k, D]
  std::vector<float> centre;                   // [D] the page's mean
  std::array<std::int32_t, kMaxSummaryTokens> of{};
  std::array<std::int32_t, kMaxCentroids> sizes{};
  std::array<float, kMaxCentroids> variance{};  // mean squared distance to the centroid
  bool finite = true;
};

void subtract_mean(const float* keys, std::int32_t n, std::int32_t dim, PageClusters& page) {
  page.centre.assign(dim, 0.0f);
  for (std::int32_t t = 0; t < n; ++t)
    for (std::int32_t c = 0; c < dim; ++c) page.centre[c] += keys[t * dim + c];
  for (float& x : page.centre) x /= static_cast<float>(n);
  page.keys.resize(std::size_t{1} * n * dim);
  for (std::int32_t t = 0; t < n; ++t)
    for (std::int32_t c = 0; c < dim; ++c) page.keys[t * dim + c] = keys[t * dim + c] - page.centre[c];
}

// Assigns every key to the nearest seed.
void seed(std::int32_t n, std::int32_t k, PageClusters& page) {
  const float* g = page.gram.data();
  std::array<float, kMaxSummaryTokens> nearest;
  std::int32_t next = 0;
  for (std::int32_t t = 1; t < n; ++t)
    if (g[t * n + t] > g[next * n + next]) next = t;
  for (std::int32_t j = 0; j < k; ++j) {
    const std::int32_t s = next;
    next = 0;
    for (std::int32_t t = 0; t < n; ++t) {
      const float distance = g[t * n + t] + g[s * n + s] - 2.0f * g[t * n + s];
      if (j == 0 || distance < nearest[t]) nearest[t] = distance, page.of[t] = j;
      if (nearest[t] > nearest[next]) next = t;
    }
  }
}

// One round: means of the clusters, as sums of rows of the Gram matrix, and the nearest of them for every key.
void move(std::int32_t n, std::int32_t k, PageClusters& page) {
  page.sizes.fill(0);
  page.sums.assign(std::size_t{1} * k * n, 0.0f);
  for (std::int32_t t = 0; t < n; ++t) {
    float* sums = page.sums.data() + page.of[t] * n;
    ++page.sizes[page.of[t]];
    for (std::int32_t i = 0; i < n; ++i) sums[i] += page.gram[t * n + i];
  }
  std::array<float, kMaxCentroids> self{};
  for (std::int32_t t = 0; t < n; ++t) self[page.of[t]] += page.sums[page.of[t] * n + t];
  for (std::int32_t t = 0; t < n; ++t) {
    float best = std::numeric_limits<float>::infinity();
    for (std::int32_t j = 0; j < k; ++j) {
      if (page.sizes[j] == 0) continue;
      const auto size = static_cast<float>(page.sizes[j]);
      const float distance = self[j] / (size * size) - 2.0f * page.sums[j * n + t] / size;
      if (distance < best) best = distance, page.of[t] = j;
    }
  }
}

void cluster_page(const float* keys, std::int32_t n, std::int32_t dim, std::int32_t k, PageClusters& page) {
  subtract_mean(keys, n, dim, page);
  page.gram.resize(std::size_t{1} * n * n);
  row_products_cpu(page.keys.data(), n, page.keys.data(), n, dim, page.gram.data());
  page.finite = std::all_of(page.gram.begin(), page.gram.end(), [](float x) { return std::isfinite(x); });
  if (!page.finite) return;
  seed(n, k, page);
  for (int round = 0; round < kRounds; ++round) move(n, k, page);
  page.sizes.fill(0);
  page.variance.fill(0.0f);
  page.means.assign(std::size_t{1} * k * dim, 0.0f);
  for (std::int32_t t = 0; t < n; ++t) {
    ++page.sizes[page.of[t]];
    for (std::int32_t c = 0; c < dim; ++c) page.means[page.of[t] * dim + c] += page.keys[t * dim + c];
  }
  for (std::int32_t j = 0; j < k; ++j)
    for (std::int32_t c = 0; c < dim && page.sizes[j] > 0; ++c)
      page.means[j * dim + c] /= static_cast<float>(page.sizes[j]);
  // From here on keys are less their centroids.
  for (std::int32_t t = 0; t < n; ++t) {
    float sum = 0.0f;
    for (std::int32_t c = 0; c < dim; ++c) {
      float& x = page.keys[t * dim + c];
      x -= page.means[page.of[t] * dim + c];
      sum += x * x;
    }
    page.variance[page.of[t]] += sum / static_cast<float>(page.sizes[page.of[t]]);
  }
}

// Deviation of every channel of n keys, to the frame's end; 1 where there is none.
void channel_deviations(const float* keys, std::int64_t n, std::int64_t dim, std::int32_t used, float* frame) {
  float* deviation = frame + dim * (dim + 1);
  for (std::int64_t c = 0; c < dim; ++c) {
    const float mean = used == 0 ? 0.0f : frame[c] / static_cast<float>(used);
    float sum = 0.0f;
    for (std::int64_t t = 0; t < n; ++t) {
      const float x = keys[t * dim + c] - mean;
      sum += std::isfinite(x) ? x * x : 0.0f;
    }
    deviation[c] = sum > 0.0f ? std::sqrt(sum / static_cast<float>(n)) : 1.0f;
  }
}

PageClusters& scratch() {
  thread_local PageClusters page;
  return page;
}

}  // namespace

std::size_t centroids_entry_bytes(std::int32_t head_dim, std::int32_t k) {
  return std::size_t{1} * k * (head_dim / 2 + 4);
}
std::int64_t centroids_frame_floats(std::int32_t head_dim) {
  return std::int64_t{head_dim} * (head_dim + 2);
}

void centroids_fit_cpu(const float* keys, std::int32_t n_pages, std::int32_t page, std::int32_t head_dim,
                       std::int32_t k, float* frame) {
  const std::int64_t dim = head_dim;
  std::fill_n(frame, centroids_frame_floats(head_dim), 0.0f);
  PageClusters& clusters = scratch();
  std::int32_t used = 0;
  for (std::int32_t p = 0; p < n_pages; ++p) {
    cluster_page(keys + p * page * dim, page, head_dim, k, clusters);
    if (!clusters.finite) continue;
    ++used;
    for (std::int64_t c = 0; c < dim; ++c) frame[c] += clusters.centre[c];
    add_outer_cpu(clusters.keys.data(), page, dim, frame + dim);
  }
  channel_deviations(keys, std::int64_t{n_pages} * page, dim, used, frame);
  if (used == 0) return;
  float trace = 0.0f;
  for (std::int64_t c = 0; c < dim; ++c) {
    frame[c] /= static_cast<float>(used);
    trace += frame[dim + c * (dim + 1)];
  }
  for (std::int64_t i = 0; i < dim * dim && trace > 0.0f; ++i) frame[dim + i] /= trace;
}

void centroids_build_cpu(const float* keys, std::int32_t n, std::int32_t head_dim, std::int32_t k, const float* frame,
                         std::byte* entry) {
  MNEME_CHECK(n <= kMaxSummaryTokens && k <= kMaxCentroids && k <= n, "{} centroids of {} keys", k, n);
  PageClusters& page = scratch();
  cluster_page(keys, n, head_dim, k, page);
  const std::size_t row = std::size_t{1} * head_dim / 2;
  const float* deviation = frame + std::int64_t{head_dim} * (head_dim + 1);
  std::memset(entry, 0, centroids_entry_bytes(head_dim, k));
  std::byte* scales = entry + k * row;
  std::byte* counts = scales + 2 * k;
  for (std::int32_t j = 0; j < k; ++j) {
    if (!page.finite) {
      put_f16(NAN, scales + 2 * j);
      counts[j] = std::byte{1};
      continue;
    }
    float* mean = page.means.data() + j * head_dim;
    float largest = 0.0f;
    for (std::int32_t c = 0; c < head_dim; ++c) {
      mean[c] = (mean[c] + page.centre[c] - frame[c]) / deviation[c];
      largest = std::max(largest, std::abs(mean[c]));
    }
    if (page.sizes[j] == 0) largest = 0.0f;
    const float scale = put_f16(largest / 7.0f, scales + 2 * j), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (std::int32_t c = 0; c < head_dim; ++c) {
      const auto code = static_cast<unsigned>(std::clamp(std::nearbyint(mean[c] * inverse), -7.0f, 7.0f) + 8.0f);
      entry[j * row + c / 2] |= static_cast<std::byte>(code << (c % 2 * 4));
    }
    counts[j] = static_cast<std::byte>(page.sizes[j]);
    counts[k + j] = std::byte{variance_code(page.variance[j])};
  }
}

void centroids_score_cpu(const SummaryScores& t, std::int32_t k) {
  if (t.n == 0) return;
  const std::int64_t dim = t.head_dim, width = t.n * k;
  const std::size_t bytes = centroids_entry_bytes(t.head_dim, k), row = std::size_t{1} * t.head_dim / 2;
  thread_local std::vector<float> dots, cq, wide;  // wide: queries in units of the channels' deviations
  thread_local std::array<float, 256> gains, logs;
  dots.resize(t.group * width);
  cq.resize(dim);
  wide.resize(t.group * dim);
  const float* deviation = t.frame + dim * (dim + 1);
  for (std::int64_t i = 0; i < t.group * dim; ++i) wide[i] = t.q[i] * deviation[i % dim];
  nibble_dots_cpu(
      wide.data(), t.group,
      {.entries = t.entries, .entry_bytes = bytes, .first = 0, .n_entries = t.n, .rows = k, .length = t.head_dim},
      dots.data(), width);
  const float c = spread_limit(static_cast<float>(t.page) / static_cast<float>(k));
  logs[0] = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 1; i < logs.size(); ++i) logs[i] = std::log(static_cast<float>(i));
  for (std::int32_t g = 0; g < t.group; ++g) {
    const float* q = t.q + g * dim;
    float base = 0.0f, w = 0.0f;
    row_products_cpu(q, 1, t.frame, 1, dim, &base);
    row_products_cpu(q, 1, t.frame + dim, dim, dim, cq.data());
    row_products_cpu(q, 1, cq.data(), 1, dim, &w);
    w = std::max(0.0f, w * t.alpha * t.alpha);
    for (std::size_t i = 0; i < gains.size(); ++i)
      gains[i] = spread_gain(w * decode_variance(static_cast<std::uint8_t>(i)), c);
    float* x = dots.data() + g * width;
    for (std::int64_t e = 0; e < t.n; ++e) {
      const std::byte* scales = t.entries + e * bytes + k * row;
      const std::byte* counts = scales + 2 * k;
      for (std::int32_t j = 0; j < k; ++j) {
        const auto n = std::to_integer<std::size_t>(counts[j]), v = std::to_integer<std::size_t>(counts[k + j]);
        float& score = x[e * k + j];
        score = n == 0 ? logs[0] : t.alpha * (base + get_f16(scales + 2 * j) * score) + gains[v] + logs[n];
      }
    }
    float* out = t.scores + g * t.stride;
    log_sum_exp_rows_cpu(x, t.n, k, out);
    for (std::int64_t e = 0; e < t.n; ++e) out[e] /= t.alpha;
  }
}

}  // namespace mneme
