#include "src/selection/mass/keep_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

void add_range(std::vector<TokenRange>& ranges, std::int32_t begin, std::int32_t end) {
  if (begin >= end) return;
  if (!ranges.empty() && ranges.back().end == begin) {
    ranges.back().end = end;
  } else {
    ranges.push_back({begin, end});
  }
}

// Eight independent sums.
double sum_of_squares(const float* a, std::int32_t n) {
  double sums[8] = {};
  std::int32_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (std::int32_t j = 0; j < 8; ++j) sums[j] += a[i + j] * double{a[i + j]};
  for (; i < n; ++i) sums[i % 8] += a[i] * double{a[i]};
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

// Squares of a prefix of the ranking, per head, and the norm of the whole.
class Norms {
 public:
  Norms(const HeadAttention& rows, const NormRule& rule)
      : rows_(rows), rule_(rule), first_(std::min(rule.sink, rows.n)), squares_(rows.n_heads) {
    if (rule.sink_in_norm) add(0, first_);
    begin_ = squares_;
    add(first_, rows.n);
    whole_ = mean();
    squares_ = begin_;
  }

  std::int32_t first() const { return first_; }
  bool all_stay() const { return rows_.n <= first_ + 1 || !(whole_ > 0) || !(rule_.loss > 0); }
  void add(std::int32_t begin, std::int32_t end) {
    for (std::size_t h = 0; h < squares_.size(); ++h)
      squares_[h] += sum_of_squares(rows_.a + h * rows_.stride + begin, end - begin);
  }
  // back() undoes what was added since the last mark().
  void mark() { marked_ = squares_; }
  void back() { squares_ = marked_; }
  bool enough() const { return (whole_ - mean()) / whole_ < rule_.loss; }

 private:
  double mean() const {
    double sum = 0;
    for (double s : squares_) sum += std::sqrt(s);
    return ratio(sum, squares_.size());
  }

  const HeadAttention& rows_;
  const NormRule& rule_;
  std::int32_t first_;
  std::vector<double> squares_, begin_, marked_;
  double whole_ = 0;
};

}  // namespace

void smooth(std::span<float> scores, std::int32_t kernel, SmoothBy by, std::vector<float>& scratch) {
  MNEME_CHECK(kernel >= 1 && kernel % 2 == 1, "a kernel of {}", kernel);
  if (kernel == 1) return;
  const std::int64_t n = scores.size();
  const std::int64_t half = kernel / 2;
  scratch.assign(scores.begin(), scores.end());
  for (std::int64_t t = 0; t < n; ++t) {
    const auto around = std::span(scratch).subspan(std::max<std::int64_t>(0, t - half),
                                                   std::min(n, t + half + 1) - std::max<std::int64_t>(0, t - half));
    scores[t] = by == SmoothBy::kMax ? *std::max_element(around.begin(), around.end())
                                     : std::accumulate(around.begin(), around.end(), 0.0f) / static_cast<float>(kernel);
  }
}

void keep_largest(std::span<const float> scores, std::int32_t sink, std::int32_t recent, std::int32_t n_keep,
                  KeepScratch& scratch, std::vector<TokenRange>& kept) {
  const auto n = size32(scores);
  kept.clear();
  if (n <= n_keep) return add_range(kept, 0, n);
  const std::int32_t first = std::min(sink, n), last = std::max(first, n - recent);
  const std::int32_t k = std::clamp(n_keep - first - (n - last), 0, last - first);
  scratch.ids.resize(k);
  const auto between = scores.subspan(first, last - first);
  const std::int32_t found = topk_cpu(between, k, scratch.ids.data(), scratch.topk);
  add_range(kept, 0, first);
  for (std::int32_t i = 0; i < found; ++i) {
    const std::int32_t t = first + scratch.ids[i];
    add_range(kept, t, t + 1);
  }
  add_range(kept, last, n);
}

std::int32_t norm_suffix(const HeadAttention& rows, const NormRule& rule) {
  Norms norms(rows, rule);
  if (norms.all_stay()) return norms.first();
  // In chunks until one suffices; then token by token.
  constexpr std::int32_t kChunk = 64;
  std::int32_t t = rows.n;
  while (t > norms.first()) {
    const std::int32_t before = std::max(norms.first(), t - kChunk);
    norms.mark();
    norms.add(before, t);
    if (norms.enough()) {
      norms.back();
      break;
    }
    t = before;
  }
  if (t == norms.first()) return t;
  do {
    --t;
    norms.add(t, t + 1);
  } while (t > norms.first() && !norms.enough());
  return t;
}

void norm_largest(const HeadAttention& rows, const NormRule& rule, std::vector<TokenRange>& kept) {
  kept.clear();
  Norms norms(rows, rule);
  if (norms.all_stay()) return add_range(kept, 0, rows.n);
  std::vector<float> mean(rows.n);
  for (std::int32_t h = 0; h < rows.n_heads; ++h)
    for (std::int32_t t = 0; t < rows.n; ++t) mean[t] += rows.a[h * rows.stride + t];
  std::vector<std::int32_t> order(rows.n - norms.first());
  std::iota(order.begin(), order.end(), norms.first());
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = mean[a], y = mean[b];
    return x != y ? x > y : a > b;
  });
  std::size_t n = 0;
  do {
    norms.add(order[n], order[n] + 1);
    ++n;
  } while (n < order.size() && !norms.enough());
  order.resize(n);
  std::sort(order.begin(), order.end());
  add_range(kept, 0, norms.first());
  for (std::int32_t t : order) add_range(kept, t, t + 1);
}

}  // namespace mneme
