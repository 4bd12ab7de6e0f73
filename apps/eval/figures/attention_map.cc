#include "apps/eval/figures/attention_map.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/ratio.h"
#include "src/methods/decode_attention.h"
#include "src/selection/topk/topk.h"

namespace mneme::eval {
namespace {

constexpr std::int32_t kGroup = 32;  // tokens that share the levels of one-bit keys

}  // namespace

AttentionMapObserver::AttentionMapObserver(const MethodShape& shape, AttentionMapOptions options)
    : shape_(shape),
      options_(options),
      shares_(shape.n_layers * shape.n_heads),
      sums_(shape.n_layers * shape.n_kv_heads),
      index_(make_one_bit_index({.group = kGroup}, 1)) {}

AttentionMapObserver::~AttentionMapObserver() = default;

void AttentionMapObserver::see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) {
  const std::int32_t length = row.cache->length(), n = length / kGroup * kGroup;
  if (length % options_.every != 0 || n == 0) return;
  if (layer == 0) ++steps_;
  for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
    std::vector<KvRun> runs;
    row.cache->append_runs(layer, m, 0, n, runs);
    std::vector<float> scores(std::int64_t{shape.group} * n);
    key_score_cpu(row.q + std::int64_t{m} * shape.group * shape.head_dim, shape, runs, scores.data(), n);
    measure_share(layer, m, scores, n, shape);
    measure_scores(layer, m, row, scores, n, shape);
  }
}

void AttentionMapObserver::measure_share(std::int32_t layer, std::int32_t kv_head, const std::vector<float>& scores,
                                         std::int32_t n, const AttentionShape& shape) {
  for (std::int32_t g = 0; g < shape.group; ++g) {
    const auto first = scores.begin() + std::int64_t{g} * n;
    std::vector<float> mass(first, first + n);
    const float largest = *std::max_element(mass.begin(), mass.end());
    double sum = 0;
    for (float& s : mass) sum += s = std::exp((s - largest) * shape.scale);
    std::sort(mass.begin(), mass.end(), std::greater<>());
    double held = 0;
    std::int32_t tokens = 0;
    while (tokens < n && held < options_.mass * sum) held += mass[tokens++];
    auto& [total, count] = shares_[layer * shape_.n_heads + kv_head * shape.group + g];
    total += ratio(tokens, n);
    ++count;
  }
}

void AttentionMapObserver::measure_scores(std::int32_t layer, std::int32_t kv_head, const DecodeRow& row,
                                          const std::vector<float>& exact, std::int32_t n,
                                          const AttentionShape& shape) {
  EntryStore entries(index_->entry_bytes(shape));
  std::vector<KvRun> runs;
  const std::int32_t e = index_->entry_tokens();
  for (std::int32_t i = 0; i < n / e; ++i) {
    runs.clear();
    row.cache->append_runs(layer, kv_head, i * e, (i + 1) * e, runs);
    index_->build(runs, shape, entries.append());
  }
  std::vector<float> estimated(exact.size());
  index_->score({.head = {row.cache, &entries, layer, kv_head},
                 .q = row.q + std::int64_t{kv_head} * shape.group * shape.head_dim,
                 .shape = shape,
                 .first_unit = 0,
                 .last_unit = n,
                 .alpha = shape.scale,
                 .scores = estimated.data(),
                 .score_stride = n},
                scratch_);
  Sums& s = sums_[layer * shape_.n_kv_heads + kv_head];
  for (std::int32_t t = 0; t < n; ++t) {
    const float x = exact[t] * shape.scale, y = estimated[t];
    s.n += 1, s.x += x, s.y += y;
    s.xx += double{x} * x, s.yy += double{y} * y, s.xy += double{x} * y;
    // Spread over layers, steps and tokens by a prime stride, until there are enough.
    if (std::ssize(pairs_) < options_.points && (t + layer + kv_head) % 97 == 0) pairs_.emplace_back(x, y);
  }
}

double AttentionMapObserver::share(std::int32_t layer, std::int32_t head) const {
  const auto& [sum, n] = shares_[layer * shape_.n_heads + head];
  return n == 0 ? std::numeric_limits<double>::quiet_NaN() : ratio(sum, n);
}

double AttentionMapObserver::correlation(std::int32_t layer, std::int32_t kv_head) const {
  const Sums& s = sums_[layer * shape_.n_kv_heads + kv_head];
  const double xx = s.n * s.xx - s.x * s.x, yy = s.n * s.yy - s.y * s.y;
  if (!(xx > 0) || !(yy > 0)) return std::numeric_limits<double>::quiet_NaN();
  return (s.n * s.xy - s.x * s.y) / std::sqrt(xx * yy);
}

}  // namespace mneme::eval
