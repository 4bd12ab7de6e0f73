#include "reference/methods/decode_attention_ref.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "reference/methods/positions_ref.h"
#include "reference/methods/summary_scores_ref.h"
#include "reference/sums.h"
#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"
#include "src/selection/cluster/kmeans.h"
#include "src/selection/index/centroid.h"

namespace mneme {
namespace {

double element(const std::byte* token, DType dtype, std::int32_t i) {
  const auto* p = token + std::size_t{2} * i;
  if (dtype == DType::kBF16) return *reinterpret_cast<const bf16*>(p);
  return *reinterpret_cast<const f16*>(p);
}

std::vector<double> elements(const std::byte* token, DType dtype, std::int32_t n) {
  std::vector<double> all(n);
  for (std::int32_t i = 0; i < n; ++i) all[i] = element(token, dtype, i);
  return all;
}

// Indices by score, descending; larger index first among equals.
std::vector<std::int32_t> ranked(const std::vector<double>& scores) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const double x = scores[a], y = scores[b];
    return x != y ? x > y : a > b;
  });
  return order;
}

// The largest product that any key between the largest and the least value of each channel could have.
double bound_of(const std::vector<double>& q, const std::vector<std::vector<double>>& keys) {
  double bound = 0;
  for (std::size_t c = 0; c < q.size(); ++c) {
    double best = -std::numeric_limits<double>::infinity();
    for (const auto& k : keys) best = std::max(best, q[c] * k[c]);
    bound += best;
  }
  return bound;
}

}  // namespace

// Scores of one unit for some queries, as the index defines them.
std::vector<double> ReferenceLayer::unit_scores(const SequenceCache& cache, std::int32_t kv_head, const Tokens& unit,
                                                const Queries& queries) const {
  const DecodeStage& stage = *plan_->recipe.decode;
  const std::int32_t d = plan_->shape.head_dim;
  const DType dtype = cache.shape().dtype;
  const double alpha = plan_->selection.scores.alpha;
  std::vector<std::vector<double>> keys;  // of the unit's tokens: exact, or dequantised from 1-bit keys
  std::vector<KvRun> unit_runs;
  for (std::int32_t t : unit) {
    keys.push_back(elements(cache.token(layer_, kv_head, t), dtype, d));
    unit_runs.push_back({cache.token(layer_, kv_head, t), 1});
  }
  if (std::holds_alternative<Centroid>(stage.index)) {
    std::vector<std::byte> centroid(2 * d);
    centroid_build_ref(unit_runs, plan_->shape.attention(), centroid.data());
    keys = {elements(centroid.data(), dtype, d)};
  }
  const auto* bits = std::get_if<OneBit>(&stage.index);
  if (bits != nullptr) {
    std::vector<float> k(d);
    std::vector<std::byte> group(one_bit_group_bytes(d, bits->group));
    for (std::size_t i = 0; i < unit.size(); ++i) {
      const std::int32_t t = unit[i];
      if (t / bits->group >= cache.length() / bits->group) continue;  // of the open group: the key itself
      if (i == 0 || t % bits->group == 0) {
        std::vector<KvRun> runs;
        const std::int32_t first = t / bits->group * bits->group;
        cache.append_runs(layer_, kv_head, first, first + bits->group, runs);
        one_bit_build_ref(runs, plan_->shape.attention(), bits->group, bits->levels, group.data());
      }
      one_bit_dequantise(group.data(), d, bits->group, t % bits->group, k.data());
      keys[i].assign(k.begin(), k.end());
    }
  }
  std::vector<double> scores;
  for (const auto& q : queries) {
    std::vector<double> by_token;
    by_token.reserve(keys.size());
    for (const auto& k : keys) by_token.push_back(dot(q, k));
    if (std::holds_alternative<RawKeys>(stage.index)) {
      for (double& s : by_token) s *= alpha;
      scores.push_back(log_sum_exp(by_token) / alpha);
    } else if (bits != nullptr || std::holds_alternative<Centroid>(stage.index)) {
      scores.push_back(ratio(std::accumulate(by_token.begin(), by_token.end(), 0.0), by_token.size()));
      if (plan_->selection.scores.by_size) scores.back() += std::log(size32(unit)) / alpha;
    } else {
      // Boxes, by the keys that they hold or by their two corners.
      const Box* box = std::get_if<Box>(&stage.index);
      MNEME_CHECK(box == nullptr || box->kind == BoxKind::kMinMax, "the reference knows no cuboids");
      scores.push_back(bound_of(q, keys));
    }
  }
  return scores;
}

// The probes of a selection head: its query heads, or one pooled of them.
ReferenceLayer::Queries ReferenceLayer::probes(std::int32_t selection_head, const float* q) const {
  const std::int32_t group = plan_->shape.group(), d = plan_->shape.head_dim;
  const std::int32_t n = plan_->by_query_head() ? 1 : group;
  Queries queries;
  for (std::int32_t h = selection_head * n; h < (selection_head + 1) * n; ++h)
    queries.emplace_back(q + h * d, q + (h + 1) * d);
  if (!pools_queries(plan_->selection.scores.pool)) return queries;
  std::vector<double> pooled = queries[0];
  for (std::size_t c = 0; c < pooled.size(); ++c) {
    for (std::size_t h = 1; h < queries.size(); ++h)
      pooled[c] =
          plan_->selection.scores.pool == Pool::kMaxQ ? std::max(pooled[c], queries[h][c]) : pooled[c] + queries[h][c];
    if (plan_->selection.scores.pool == Pool::kMeanQ) pooled[c] = ratio(pooled[c], queries.size());
  }
  return {pooled};
}

// One score per unit of scores [query][unit].
std::vector<double> ReferenceLayer::pool_scores(const std::vector<std::vector<double>>& scores) const {
  if (!pools_scores(plan_->selection.scores.pool)) return scores[0];
  const double alpha = plan_->selection.scores.alpha;
  std::vector<double> lse;
  for (const auto& row : scores) {
    std::vector<double> scaled = row;
    for (double& s : scaled) s *= alpha;
    lse.push_back(log_sum_exp(scaled));
  }
  std::vector<double> pooled;
  for (std::size_t u = 0; u < scores[0].size(); ++u) {
    std::vector<double> raw, logs;
    for (std::size_t h = 0; h < scores.size(); ++h) {
      raw.push_back(scores[h][u]);
      logs.push_back(alpha * scores[h][u] - lse[h]);
    }
    switch (plan_->selection.scores.pool) {
      case Pool::kMaxQk:
        pooled.push_back(*std::max_element(raw.begin(), raw.end()));
        break;
      case Pool::kMeanQk:
        pooled.push_back(ratio(std::accumulate(raw.begin(), raw.end(), 0.0), raw.size()));
        break;
      case Pool::kMaxS:
        pooled.push_back(*std::max_element(logs.begin(), logs.end()));
        break;
      case Pool::kMeanS:
        pooled.push_back(log_sum_exp(logs));
        break;
      default:
        break;  // of queries, or none
    }
  }
  return pooled;
}

// Scores of a selection head's candidates, [query][unit]; with domain=attention those of sinks and window last.
std::vector<std::vector<double>> ReferenceLayer::query_scores(const SequenceCache& cache, const Region& region,
                                                              std::int32_t selection_head, const float* q) const {
  const std::int32_t kv_head = plan_->by_query_head() ? selection_head / plan_->shape.group() : selection_head;
  const Queries queries = probes(selection_head, q);
  std::vector<std::vector<double>> scores(queries.size());
  if (selects_by_summary(*plan_)) {
    scores = summary_scores_ref(*plan_, cache, layer_, kv_head, region, queries);
  } else {
    for (const Tokens& unit : candidates(cache, region, kv_head)) {
      const std::vector<double> of_unit = unit_scores(cache, kv_head, unit, queries);
      for (std::size_t h = 0; h < queries.size(); ++h) scores[h].push_back(of_unit[h]);
    }
  }
  if (plan_->selection.scores.domain == Domain::kCandidates) return scores;
  const std::vector<double> fixed = fixed_scores(cache, region, kv_head, queries);
  for (std::size_t h = 0; h < queries.size(); ++h) scores[h].push_back(fixed[h]);
  return scores;
}

ReferenceLayer::Selection ReferenceLayer::select(const SequenceCache& cache, const Region& region,
                                                 std::int32_t selection_head, const float* q) const {
  const std::int32_t kv_head = plan_->by_query_head() ? selection_head / plan_->shape.group() : selection_head;
  Selection selection{.candidates = candidates(cache, region, kv_head), .first_unit = region.first_unit};
  if (selection.candidates.empty()) return selection;
  std::vector<std::vector<double>> scores;
  const bool one = plan_->selection.scope == SelectScope::kLayer;
  for (std::int32_t s = one ? 0 : selection_head; s < (one ? plan_->shape.n_kv_heads : selection_head + 1); ++s)
    for (auto& row : query_scores(cache, region, s, q)) scores.push_back(std::move(row));
  selection.scores = pool_scores(scores);
  if (plan_->selection.scores.domain == Domain::kCandidates) return selection;
  selection.fixed = selection.scores.back();
  selection.scores.pop_back();
  return selection;
}

bool ReferenceLayer::moved(std::int32_t first_head, std::int32_t n_heads, const float* q) const {
  const std::int32_t d = plan_->shape.head_dim;
  std::vector<double> cosines;
  for (std::int32_t h = first_head; h < first_head + n_heads; ++h) {
    const std::vector<double> a(q + h * d, q + (h + 1) * d),
        b(last_query_.begin() + h * d, last_query_.begin() + (h + 1) * d);
    const double norms = std::sqrt(dot(a, a) * dot(b, b));
    cosines.push_back(norms == 0 ? 0 : dot(a, b) / norms);
  }
  const double tau = plan_->selection.gate.tau;
  switch (plan_->selection.gate.pool) {
    case GatePool::kMean:
      return std::accumulate(cosines.begin(), cosines.end(), 0.0) / n_heads < tau;
    case GatePool::kMax:
      return *std::max_element(cosines.begin(), cosines.end()) < tau;
    case GatePool::kAny:
      return *std::min_element(cosines.begin(), cosines.end()) < tau;
  }
  return true;
}

// Whether the softmax over a selection's candidates (and sinks and window, where they have a score) gives its first
// n_units more than eps where the other selection lacks them; of_attended: more than eps of what that selection holds.
bool ReferenceLayer::missing_too_much(const Selection& now, const Selection& speculative, std::size_t n_units) const {
  std::vector<double> logs = now.scores;
  const std::vector<std::int32_t> wanted = ranked(now.scores), there = ranked(speculative.scores);
  if (now.fixed) logs.push_back(*now.fixed);
  for (double& x : logs) x *= plan_->log_weight_scale();
  const double all = log_sum_exp(logs);
  const auto stop = there.begin() + n_units;
  double mass = 0, attended = now.fixed ? std::exp(logs.back() - all) : 0;
  for (auto it = there.begin(); it != stop; ++it)
    attended += std::exp(logs[*it + speculative.first_unit - now.first_unit] - all);
  for (std::size_t i = 0; i < n_units; ++i)
    if (std::find(there.begin(), stop, wanted[i] + now.first_unit - speculative.first_unit) == stop)
      mass += std::exp(logs[wanted[i]] - all);
  return mass > plan_->selection.gate.eps * (plan_->selection.gate.of_attended ? attended : 1.0);
}

// Scores of sinks and window as of one unit with index=keys, by query.
std::vector<double> ReferenceLayer::fixed_scores(const SequenceCache& cache, const Region& region, std::int32_t kv_head,
                                                 const Queries& queries) const {
  std::vector<double> scores;
  for (const auto& q : queries) {
    std::vector<double> logs;
    for (std::int32_t t = 0; t < cache.length(); ++t) {
      if (t >= region.sink && t < region.recent_from) continue;
      std::vector<double> key;
      for (std::int32_t c = 0; c < plan_->shape.head_dim; ++c)
        key.push_back(element(cache.token(layer_, kv_head, t), cache.shape().dtype, c));
      logs.push_back(plan_->selection.scores.alpha * dot(q, key));
    }
    scores.push_back(log_sum_exp(logs) / plan_->selection.scores.alpha);
  }
  return scores;
}

// Whether a KV head selects with this step's query.
bool ReferenceLayer::reselect(std::int32_t n, std::int32_t kv_head, const float* q) const {
  if (!plan_->reuses() || ready_for_ != n) return true;
  if (plan_->mass_gate()) return false;  // decided by missing mass
  if (plan_->speculative()) return moved(kv_head * plan_->shape.group(), plan_->shape.group(), q);
  return moved(0, plan_->shape.n_heads, q) ||
         (plan_->selection.gate.max_reuse > 0 && reused_ >= plan_->selection.gate.max_reuse);
}

// Records the newest token and the undecoded tokens before it.
void ReferenceLayer::see(std::int32_t n, const float* q) {
  seen_.resize(n - 1);
  seen_.push_back(
      {.decoded = true, .boundary = plan_->cosine_gate() && (queried_for_ != n || moved(0, plan_->shape.n_heads, q))});
  if (plan_->lists) partition_ = partition_ref(plan_->lists->partition, seen_);
}

Region ReferenceLayer::region(std::int32_t n) const {
  return plan_->lists ? list_region_at(plan_->rules, n, partition_.grouped, 0) : region_at(plan_->rules, n);
}

// Tokens of every candidate unit.
std::vector<ReferenceLayer::Tokens> ReferenceLayer::candidates(const SequenceCache& cache, const Region& region,
                                                               std::int32_t kv_head) const {
  std::vector<Tokens> units;
  if (!plan_->lists) {
    for (std::int32_t u = region.first_unit; u < region.last_unit; ++u) {
      Tokens& unit = units.emplace_back(plan_->rules.unit_tokens);
      std::iota(unit.begin(), unit.end(), u * plan_->rules.unit_tokens);
    }
    return units;
  }
  for (const UnitRange& range : partition_.ranges) {
    Tokens all(range.end - range.begin);
    std::iota(all.begin(), all.end(), range.begin);
    if (!range.clusters) {
      units.push_back(all);
      continue;
    }
    const ClusterUnit& rules = plan_->lists->clusters;
    const auto n = size32(all), n_clusters = (n + rules.tokens - 1) / rules.tokens;
    std::vector<std::int32_t> cluster(all.size());
    std::iota(cluster.begin(), cluster.end(), 0);
    std::vector<KvRun> runs;
    cache.append_runs(layer_, kv_head, range.begin, range.end, runs);
    if (n_clusters < n)
      kmeans_ref({.runs = runs,
                  .shape = plan_->shape.attention(),
                  .n_clusters = n_clusters,
                  .iterations = rules.iterations,
                  .metric = rules.metric},
                 cluster.data());
    std::vector<Tokens> by_cluster(n_clusters);
    for (std::size_t i = 0; i < all.size(); ++i) by_cluster[cluster[i]].push_back(all[i]);
    for (const Tokens& unit : by_cluster)
      if (!unit.empty()) units.push_back(unit);
  }
  return units;
}

// The selection that a head attends: made with this step's query where it reselects, else the ready one.
ReferenceLayer::Selection ReferenceLayer::decide(const SequenceCache& cache, const Region& region, std::int32_t s,
                                                 const float* q, ReferenceHead& head) const {
  head.reselected = reselect(cache.length(), plan_->by_query_head() ? s / plan_->shape.group() : s, q);
  const auto n_tokens = [](const Selection& c) {
    return std::accumulate(c.candidates.begin(), c.candidates.end(), std::size_t{0},
                           [](std::size_t sum, const Tokens& unit) { return sum + unit.size(); });
  };
  const std::size_t wanted = region.select_tokens;
  // A selection made just above the budget may be too short for a step with a shorter window.
  head.reselected = head.reselected || n_tokens(ready_[s]) < wanted;
  if (plan_->mass_gate() && !head.reselected)
    head.reselected = missing_too_much(select(cache, region, s, q), ready_[s], wanted / plan_->rules.unit_tokens);
  return head.reselected ? select(cache, region, s, q) : ready_[s];
}

// What stays of a selection where a step attends `hold` new units at most: as scores that order the others behind them.
void ReferenceLayer::hold(std::int32_t n, std::int32_t s, std::size_t n_units, Selection& selection) {
  held_.resize(plan_->selection_heads());
  Held& held = held_[s];
  std::vector<std::int32_t> order = ranked(selection.scores);
  if (held.step == n && held.units.size() == n_units) {
    const std::size_t best = plan_->selection.hold;
    const auto is_held = [&](std::int32_t i) {
      return std::find(held.units.begin(), held.units.end(), i + selection.first_unit) != held.units.end();
    };
    std::stable_partition(order.begin() + std::min(best, order.size()), order.end(), is_held);
    for (std::int32_t i = 0; i < size32(order); ++i) selection.scores[order[i]] = -i;
  }
  held.units.clear();
  for (std::size_t i = 0; i < n_units; ++i) held.units.push_back(order[i] + selection.first_unit);
  held.step = n + 1;
}

// Of the tokens taken, each query head keeps its largest probabilities up to a share p.
void ReferenceLayer::keep_top_p(const SequenceCache& cache, std::int32_t s, const float* q,
                                std::vector<bool>& taken) const {
  const auto* top_p = std::get_if<TopP>(&plan_->recipe.decode->cutoff);
  if (top_p == nullptr || top_p->p >= 1) return;
  const std::int32_t d = plan_->shape.head_dim, per = plan_->shape.n_heads / plan_->selection_heads();
  std::vector<std::int32_t> tokens;
  for (std::size_t t = 0; t < taken.size(); ++t)
    if (taken[t]) tokens.push_back(count32(t));
  std::fill(taken.begin(), taken.end(), false);
  taken.back() = true;
  for (std::int32_t h = s * per; h < (s + 1) * per; ++h) {
    std::vector<double> logs;
    for (std::int32_t t : tokens) {
      double sum = 0;
      for (std::int32_t c = 0; c < d; ++c)
        sum += q[h * d + c] * element(cache.token(layer_, h / plan_->shape.group(), t), cache.shape().dtype, c);
      logs.push_back(sum * plan_->shape.attention().scale);
    }
    const double lse = log_sum_exp(logs);
    double mass = 0;
    for (std::int32_t i : ranked(logs)) {
      if (mass >= top_p->p) break;
      mass += std::exp(logs[i] - lse);
      taken[tokens[i]] = true;
    }
  }
}

// Takes units by rank until the tokens suffice; the last unit is truncated.
void ReferenceLayer::take_units(const Selection& selection, const Region& region, std::vector<bool>& taken,
                                ReferenceHead& head) {
  head.unit_scores = selection.scores;
  head.first_unit = selection.first_unit;
  const std::size_t wanted = region.select_tokens;
  std::size_t n_taken = 0;
  for (std::int32_t i : ranked(selection.scores)) {
    if (n_taken == wanted) break;
    head.units.push_back(i + selection.first_unit);
    for (std::int32_t t : selection.candidates[i]) {
      if (n_taken == wanted) break;
      taken[t] = true;
      ++n_taken;
    }
  }
  std::sort(head.units.begin(), head.units.end());
}

// Exact attention of query head h over a set of tokens.
void ReferenceLayer::attend(const SequenceCache& cache, const Region& region, const std::vector<std::int32_t>& tokens,
                            std::int32_t h, const float* q, float* out) const {
  const std::int32_t d = plan_->shape.head_dim, kv_head = h / plan_->shape.group();
  const DType dtype = cache.shape().dtype;
  std::vector<double> weights;
  for (std::int32_t t : tokens) {
    const std::vector<double> key = elements(cache.token(layer_, kv_head, t), dtype, d);
    weights.push_back(
        dot_at_position(*plan_, rope_, {q + h * d, cache.length() - 1, region.everything, region.recent_from}, key, t) *
        plan_->shape.attention().scale);
  }
  const double lse = log_sum_exp(weights);
  for (double& w : weights) w = std::exp(w - lse);
  for (std::int32_t c = 0; c < d; ++c) {
    double sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i)
      sum += weights[i] * element(cache.token(layer_, kv_head, tokens[i]), dtype, d + c);
    out[h * d + c] = static_cast<float>(sum);
  }
}

// Stores what the next step's gate compares with, and the selections that it may attend.
void ReferenceLayer::remember(std::int32_t n, bool selects, const std::vector<ReferenceHead>& heads, const float* q,
                              std::vector<Selection> next) {
  const bool reselected =
      !selects || std::any_of(heads.begin(), heads.end(), [](const auto& head) { return head.reselected; });
  reused_ = reselected ? 0 : reused_ + 1;
  if (reselected || plan_->selection.gate.reference == GateReference::kPrevious || queried_for_ != n)
    last_query_.assign(q, q + plan_->shape.n_heads * plan_->shape.head_dim);
  ready_ = std::move(next);
  ready_for_ = selects ? n + 1 : -1;
  queried_for_ = n + 1;
}

std::vector<ReferenceHead> ReferenceLayer::step(const SequenceCache& cache, const float* q, float* out) {
  const std::int32_t n = cache.length();
  const bool dense = plan_->dense_layer(layer_);
  if (!dense && plan_->selects()) see(n, q);
  const Region region = dense ? Region{} : this->region(n);
  const std::int32_t n_heads = dense ? plan_->shape.n_kv_heads : plan_->selection_heads();
  std::vector<ReferenceHead> heads(n_heads);
  const bool selects = !region.everything && plan_->selects();
  std::vector<Selection> next;
  for (std::int32_t s = 0; s < n_heads; ++s) {
    ReferenceHead& head = heads[s];
    const bool full = full_head(s * plan_->shape.n_kv_heads / n_heads);
    std::vector<bool> taken(n);
    for (std::int32_t t = 0; t < n; ++t)
      taken[t] = full || region.everything || t < region.sink || t >= region.recent_from;
    if (full && selects) next.push_back({});
    if (selects && !full) {
      Selection selection = decide(cache, region, s, q, head);
      const std::vector<double> scores = selection.scores;
      if (plan_->selection.hold > 0) hold(n, s, region.select_tokens / plan_->rules.unit_tokens, selection);
      take_units(selection, region, taken, head);
      head.unit_scores = scores;
      keep_top_p(cache, s, q, taken);
      next.push_back(plan_->speculative() ? select(cache, region_at(plan_->rules, n + 1), s, q) : selection);
    }
    for (std::int32_t t = 0; t < n; ++t)
      if (taken[t]) head.tokens.push_back(t);
    const std::int32_t per = plan_->shape.n_heads / n_heads;
    for (std::int32_t h = s * per; h < (s + 1) * per; ++h) attend(cache, region, head.tokens, h, q, out);
  }
  if (plan_->gated() && !dense) remember(n, selects, heads, q, std::move(next));
  return heads;
}

}  // namespace mneme
