// Decode attention, what follows scores where a step's best units are not all there is to it: one selection a layer,
// units held from the step before, and the tokens of a selection that hold enough of the attention.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/size32.h"
#include "src/methods/decode_attention.h"
#include "src/methods/decode_item.h"
#include "src/methods/fixed_scores.h"

namespace mneme {
namespace {

// One pooled score a unit of all KV heads: `scores` are pooled by KV head already.
void add_pooled(std::span<const float> scores, Pool pool, std::span<float> all) {
  for (std::size_t u = 0; u < all.size(); ++u) {
    const float x = scores[u], y = all[u];
    if (std::isnan(x) || std::isnan(y))
      all[u] = NAN;
    else if (pool == Pool::kMeanQk)
      all[u] = x + y;
    else if (pool == Pool::kMeanS && std::isfinite(std::max(x, y)))
      all[u] = std::max(x, y) + std::log1p(std::exp(-std::abs(x - y)));
    else
      all[u] = std::max(x, y);
  }
}

}  // namespace

void DecodeAttention::score_layers(std::int32_t layer, const AttentionShape& shape) {
  const auto of_layer = [](const Item& item) {
    return item.selects() && item.row->method->plan().selection.scope == SelectScope::kLayer;
  };
  if (std::none_of(items_.begin(), items_.end(), of_layer)) return;
  if (layer_scores_.size() < items_.size()) layer_scores_.resize(items_.size());
  context_.pool->parallel_for(std::ssize(items_), 1, [&](std::int64_t begin, std::int64_t end, int w) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (!of_layer(items_[i])) continue;
      const std::span<const float> scores = score(layer, items_[i], items_[i].region, shape, workers_[w]);
      layer_scores_[i].assign(scores.begin(), scores.end());
    }
  });
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (!of_layer(items_[i])) continue;
    if (items_[i].head == 0) {
      const Pool pool = items_[i].row->method->plan().selection.scores.pool;
      for (std::size_t j = i + 1; j < items_.size() && items_[j].row == items_[i].row; ++j)
        add_pooled(layer_scores_[j], pool, layer_scores_[i]);
      items_[i].shared = layer_scores_[i];
    } else {
      items_[i].shared = items_[i - 1].shared;
    }
  }
}

// The best `hold` units come in, as far as they are not attended already; those that are neither among them nor score
// enough make room.
void DecodeAttention::hold_units(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker,
                                 std::vector<std::int32_t>& units) {
  const Region& region = item.region;
  const std::span<const float> scores = scores_of(layer, item, region, shape, worker);
  const std::int32_t k = std::min(item.row->method->plan().selection.hold, region.n_select);
  std::vector<std::int32_t>& best = worker.fresh;
  best.resize(k);
  best.resize(topk_cpu(scores, k, best.data(), worker.rank.topk));
  for (std::int32_t& u : best) u += region.first_unit;
  std::vector<std::int32_t>& others = worker.there;  // held, and not among the best
  others.clear();
  std::set_difference(units.begin(), units.end(), best.begin(), best.end(), std::back_inserter(others));
  const auto score_of = [&](std::int32_t u) {
    const float x = scores[u - region.first_unit];
    return std::isnan(x) ? -INFINITY : x;
  };
  std::sort(others.begin(), others.end(), [&](std::int32_t a, std::int32_t b) {
    return score_of(a) != score_of(b) ? score_of(a) > score_of(b) : a > b;
  });
  others.resize(std::min(others.size(), std::size_t{0} + region.n_select - best.size()));
  units.assign(best.begin(), best.end());
  units.insert(units.end(), others.begin(), others.end());
  std::sort(units.begin(), units.end());
}

// Of sinks, selection and window: what a query head needs for a share p of its softmax, united over the group.
void DecodeAttention::keep_top_p(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker) {
  const MethodState& method = *item.row->method;
  const std::int32_t p_tokens = method.plan().rules.unit_tokens, length = item.length(), d = shape.head_dim;
  const bool single = item.per_query_head;
  AttentionShape rows = shape;
  if (single) rows.group = 1;
  std::vector<std::int32_t>& positions = worker.wanted;
  positions.clear();
  const auto add = [&](std::int32_t begin, std::int32_t end) {
    for (std::int32_t t = begin; t < end; ++t) positions.push_back(t);
  };
  add(0, item.region.sink);
  for (const std::int32_t u : method.layer(layer).attended[item.head]) add(u * p_tokens, (u + 1) * p_tokens);
  add(item.region.recent_from, length);
  const std::int64_t n = std::ssize(positions);
  std::vector<KvRun>& runs = worker.score.runs;
  runs.clear();
  item.row->cache->append_units(layer, item.kv_head, positions, 1, runs);
  worker.scores.resize(rows.group * n);
  const float* q = item.row->q + std::int64_t{single ? item.head : item.kv_head * shape.group} * d;
  key_score_cpu(q, rows, runs, worker.scores.data(), n);
  item.index_bytes += n * shape.token_bytes() / 2;
  std::vector<std::uint64_t>& keeps = worker.marks;
  keeps.assign(n, 0);
  keeps.back() = 1;
  std::vector<std::int32_t> order(n);
  const double share = method.plan().selection.top_p;
  for (std::int32_t g = 0; g < rows.group; ++g) {
    float* scores = worker.scores.data() + g * n;
    if (std::any_of(scores, scores + n, [](float x) { return !std::isfinite(x); })) {
      std::fill(keeps.begin(), keeps.end(), 1);
      break;
    }
    const float largest = *std::max_element(scores, scores + n);
    double total = 0, sum = 0;
    for (std::int64_t i = 0; i < n; ++i) total += scores[i] = std::exp(shape.scale * (scores[i] - largest));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](std::int32_t a, std::int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a > b; });
    for (std::int64_t i = 0; i < n && sum < share * total; ++i) {
      sum += scores[order[i]];
      keeps[order[i]] = 1;
    }
  }
  std::vector<std::int32_t>& kept = item.row->method->layer(layer).kept_tokens[item.head];
  kept.clear();
  for (std::int64_t i = 0; i < n; ++i)
    if (keeps[i] != 0) kept.push_back(positions[i]);
}

}  // namespace mneme
