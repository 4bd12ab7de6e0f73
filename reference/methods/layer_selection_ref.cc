#include "reference/methods/layer_selection_ref.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/methods/window_attention_ref.h"
#include "reference/sums.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

void normalise(std::vector<double>& v) {
  const double length = std::sqrt(dot(v, v));
  if (length > 0)
    for (double& x : v) x /= length;
}

// The n largest of 0 .. size - 1 by value, larger index first among equals; returned ascending.
template <typename F>
std::vector<std::int32_t> best(std::int32_t size, std::int32_t n, const F& value) {
  std::vector<std::int32_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::int32_t a, std::int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a > b; });
  order.resize(std::min(n, size));
  std::sort(order.begin(), order.end());
  return order;
}

// Weights of the rows from `begin` on, given all rows so far.
std::vector<double> weights_of(WindowProbe probe, const std::vector<std::vector<double>>& rows, std::size_t begin) {
  const std::size_t channels = rows[0].size();
  std::vector<double> mean(channels), variance(channels), bias;
  for (std::size_t c = 0; c < channels; ++c) {
    for (const auto& row : rows) mean[c] += row[c];
    mean[c] = ratio(mean[c], rows.size());
    for (const auto& row : rows) variance[c] += (row[c] - mean[c]) * (row[c] - mean[c]);
    variance[c] = rows.size() < 2 ? 0 : ratio(variance[c], rows.size() - 1);
  }
  const double floor = ratio(std::accumulate(variance.begin(), variance.end(), 0.0), channels) / 100;
  for (std::size_t i = begin; i < rows.size(); ++i) {
    double sum = 0;
    for (std::size_t c = 0; c < channels && floor > 0; ++c)
      sum += (rows[i][c] - mean[c]) * (rows[i][c] - mean[c]) / (variance[c] + floor);
    if (probe == WindowProbe::kMean) sum = 1;
    if (probe == WindowProbe::kReversed) sum = 1 / sum;
    bias.push_back(sum);
  }
  const double all = std::accumulate(bias.begin(), bias.end(), 0.0);
  for (double& b : bias) b = all > 0 && std::isfinite(all) ? b / all : ratio(1, bias.size());
  return bias;
}

}  // namespace

std::vector<double> LayerSelectionRef::key(const SequenceCache& cache, std::int32_t kv_head, std::int32_t t) const {
  return numbers(cache.token(layer_, kv_head, t), plan_->shape.head_dim, cache.shape().dtype);
}

std::vector<double> LayerSelectionRef::remote(const float* q, std::int32_t position) const {
  std::vector<double> all;
  for (std::int32_t h = 0; h < plan_->shape.n_heads; ++h) {
    std::vector<double> head(q + h * plan_->shape.head_dim, q + (h + 1) * plan_->shape.head_dim);
    if (plan_->remote_position) head = rotated(head, *plan_->remote_position - position, rope_);
    all.insert(all.end(), head.begin(), head.end());
  }
  return all;
}

std::vector<double> LayerSelectionRef::mean_of_top(const SequenceCache& cache, std::int32_t begin) const {
  std::vector<double> unit;
  for (std::int32_t h = 0; h < plan_->shape.n_heads; ++h) {
    std::vector<double> sum(plan_->shape.head_dim);
    for (std::int32_t i : best(plan_->rules.unit_tokens, plan_->layer_selection->top,
                               [&](std::int32_t t) { return mass(h, begin + t); })) {
      const std::vector<double> k = key(cache, h / plan_->shape.group(), begin + i);
      for (std::size_t c = 0; c < k.size(); ++c) sum[c] += k[c];
    }
    unit.insert(unit.end(), sum.begin(), sum.end());
  }
  if (dots()) {
    for (double& x : unit) x /= std::min(plan_->layer_selection->top, plan_->rules.unit_tokens);
  } else {
    normalise(unit);
  }
  return unit;
}

std::vector<double> LayerSelectionRef::top_keys(const SequenceCache& cache, std::int32_t begin) const {
  std::vector<double> unit;
  const auto mass_of_all = [&](std::int32_t t) {
    double sum = 0;
    for (std::int32_t h = 0; h < plan_->shape.n_heads; ++h) sum += mass(h, begin + t);
    return sum;
  };
  for (std::int32_t i : best(plan_->rules.unit_tokens, plan_->layer_selection->top, mass_of_all)) {
    std::vector<double> keys;
    for (std::int32_t m = 0; m < plan_->shape.n_kv_heads; ++m) {
      const std::vector<double> k = key(cache, m, begin + i);
      keys.insert(keys.end(), k.begin(), k.end());
    }
    normalise(keys);
    for (double& x : keys) x /= std::sqrt(plan_->shape.group());
    unit.insert(unit.end(), keys.begin(), keys.end());
  }
  return unit;
}

void LayerSelectionRef::file(const SequenceCache& cache, std::int32_t n_tokens) {
  const std::int32_t p = plan_->rules.unit_tokens, end = window_begin(plan_->rules, n_tokens) / p;
  while (filed() < end) {
    const bool mean = plan_->layer_selection->match == KeyMatch::kMean;
    units_.push_back(mean ? mean_of_top(cache, filed() * p) : top_keys(cache, filed() * p));
  }
}

double LayerSelectionRef::cosine(const std::vector<double>& probe, std::int32_t u) const {
  const std::vector<double>& unit = representative(u);
  if (plan_->layer_selection->match == KeyMatch::kMean) return dot(probe, unit);
  const std::size_t d = plan_->shape.head_dim, width = d * plan_->shape.n_kv_heads;
  double largest = -INFINITY;
  for (std::size_t row = 0; row < unit.size(); row += width) {
    double dot_product = 0;
    for (std::size_t i = 0; i < probe.size(); ++i) {
      const std::size_t kv_head = i / d / plan_->shape.group();
      dot_product += probe[i] * unit[row + kv_head * d + i % d];
    }
    largest = std::max(largest, dot_product);
  }
  return largest;
}

LayerSelectionRef::Selection LayerSelectionRef::select(const SequenceCache& cache, std::int32_t begin, std::int32_t end,
                                                       const float* q, bool prefill, std::int32_t n_units) {
  const std::int32_t n_heads = plan_->shape.n_heads, width = n_heads * plan_->shape.head_dim;
  mass_.resize(n_heads);
  for (auto& m : mass_) m.resize(end, 0.0);
  file(cache, begin + 1);
  Selection selection;
  std::vector<double> probe = remote(q, begin);
  if (prefill) {
    const std::size_t before = prefill_rows_.size();
    for (std::int32_t p = begin; p < end; ++p) prefill_rows_.push_back(remote(q + (p - begin) * width, p));
    selection.weights = weights_of(plan_->window->probe, prefill_rows_, before);
    std::fill(probe.begin(), probe.end(), 0.0);
    for (std::size_t i = 0; i < selection.weights.size(); ++i)
      for (std::size_t c = 0; c < probe.size(); ++c) probe[c] += selection.weights[i] * prefill_rows_[before + i][c];
  }
  const Region region = region_at(plan_->rules, begin + 1);
  selection.everything = prefill ? end <= plan_->rules.budget : region.everything;
  if (selection.everything) return selection;
  selection.first_unit = region.first_unit;
  if (!dots()) normalise(probe);
  const bool asks = prefill || plan_->window->question_in_answers;
  for (std::int32_t u = region.first_unit; u < region.last_unit; ++u) {
    double score = cosine(probe, u);
    if (asks && !question_.empty()) score += plan_->window->question_weight * cosine(question_, u);
    selection.scores.push_back(score);
  }
  selection.units =
      best(region.last_unit - region.first_unit, n_units, [&](std::int32_t i) { return selection.scores[i]; });
  for (std::int32_t& u : selection.units) u += region.first_unit;
  return selection;
}

void LayerSelectionRef::attend(const SequenceCache& cache, const Selection& selection, std::int32_t begin,
                               std::int32_t end, const float* q, float* out) {
  const std::int32_t d = plan_->shape.head_dim, n_heads = plan_->shape.n_heads, group = plan_->shape.group();
  const std::int32_t p = plan_->rules.unit_tokens,
                     base = selection.everything ? 0 : region_at(plan_->rules, begin + 1).recent_from;
  const float* rows = q;
  for (std::int32_t at = begin; at < end; ++at) {
    std::vector<std::int32_t> tokens;
    for (std::int32_t t = 0; t <= at; ++t)
      if (t >= base || t < plan_->rules.sink ||
          std::find(selection.units.begin(), selection.units.end(), t / p) != selection.units.end())
        tokens.push_back(t);
    for (std::int32_t h = 0; h < n_heads; ++h, q += d, out += d) {
      std::vector<double> scores, sum(d);
      for (std::int32_t t : tokens)
        scores.push_back(
            dot_at_position(*plan_, rope_, {q, at, selection.everything, base}, key(cache, h / group, t), t) *
            plan_->shape.attention().scale);
      const double top = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (double& s : scores) total += s = std::exp(s - top);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const double share = scores[i] / total;
        const auto v = numbers(cache.token(layer_, h / group, tokens[i]) + 2 * d, d, cache.shape().dtype);
        for (std::size_t c = 0; c < v.size(); ++c) sum[c] += share * v[c];
        if (tokens[i] >= base && tokens[i] / p >= filed() && at - tokens[i] < plan_->rules.recent)
          mass_[h][tokens[i]] += share;
      }
      std::copy(sum.begin(), sum.end(), out);
    }
  }
  for (std::int32_t t = std::max(begin, span_.first); t < std::min(end, span_.second); ++t)
    span_rows_.push_back(remote(rows + (t - begin) * n_heads * d, t));
  if (span_rows_.empty() || !question_.empty() || end < span_.second) return;
  for (std::int32_t h = 0; h < n_heads; ++h) {
    std::vector<double> sum(d);
    for (std::int32_t i : best(size32(span_rows_), 4,  // Q-LLM's number, whatever stands for a unit
                               [&](std::int32_t t) { return mass(h, span_.first + t); }))
      for (std::int32_t c = 0; c < d; ++c) sum[c] += span_rows_[i][h * d + c];
    question_.insert(question_.end(), sum.begin(), sum.end());
  }
  if (!dots()) return normalise(question_);
  for (double& x : question_) x /= std::min(4, size32(span_rows_));
}

}  // namespace mneme
