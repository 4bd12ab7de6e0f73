#include "src/attention/method_state.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace mneme {

void Ranking::take(std::int32_t n, std::vector<std::int32_t>& taken) const {
  const auto count = n == 0 ? 0 : std::lower_bound(ends.begin(), ends.end(), n) - ends.begin() + 1;
  taken.assign(units.begin(), units.begin() + count);
  std::sort(taken.begin(), taken.end());
}

MethodState::MethodState(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {
  const MethodShape& shape = plan_->shape;
  layers_.resize(static_cast<std::size_t>(shape.n_layers));
  stats_.layers.resize(layers_.size());
  const std::size_t queries = static_cast<std::size_t>(shape.n_heads) * static_cast<std::size_t>(shape.head_dim);
  if (plan_->probe == Probe::kPreviousLayer) query_below_.resize(queries);
  const auto n_kv = static_cast<std::size_t>(shape.n_kv_heads);
  if (plan_->key_basis == KeyBasis::kRaw)
    for (Layer& layer : layers_) layer.near.assign(n_kv, TurnedWindow(plan_->rules.recent));
  if (plan_->tap_rows() == Plan::kAllRows)
    for (std::int32_t l = 0; l < shape.n_layers; ++l)
      if (plan_->compressed(l)) layers_[static_cast<std::size_t>(l)].mass.resize(n_kv);
  if (!plan_->selects()) return;
  const auto n_selections = static_cast<std::size_t>(plan_->selection_heads());
  for (std::int32_t l = 0; l < shape.n_layers; ++l) {
    if (plan_->dense_layer(l)) continue;
    Layer& layer = layers_[static_cast<std::size_t>(l)];
    layer.entries.assign(n_kv, EntryStore(plan_->index->entry_bytes(shape.attention())));
    layer.attended.resize(n_selections);
    if (plan_->reuse == Reuse::kAhead) layer.ahead.resize(n_selections);
    if (plan_->reuse == Reuse::kKept) layer.ranked.resize(n_selections);
    if (!plan_->gate) continue;
    layer.last_query.resize(queries);
    stats_.layers[static_cast<std::size_t>(l)].gate_checks.assign(plan_->gates(), 0);
    stats_.layers[static_cast<std::size_t>(l)].corrections.assign(plan_->gates(), 0);
  }
}

bool MethodState::asks_gate(std::int32_t l, std::int32_t length) const {
  if (!plan_->gate || plan_->dense_layer(l) || layer(l).queried_for != length) return false;
  return plan_->reuse == Reuse::kKept || layer(l).ready_for == length;
}

void MethodState::close_units(std::int32_t l, std::int32_t kv_head, const SequenceCache& cache) {
  if (!plan_->selects() || plan_->dense_layer(l)) return;
  EntryStore& entries = layer(l).entries[static_cast<std::size_t>(kv_head)];
  if (entries.entry_bytes() == 0) return;
  const std::int32_t e = plan_->index->entry_tokens(), complete = cache.length() / e;
  const AttentionShape shape = plan_->shape.attention();
  thread_local std::vector<KvRun> runs;
  while (entries.size() < complete) {
    runs.clear();
    const std::int32_t begin = entries.size() * e;
    cache.append_runs(l, kv_head, begin, begin + e, runs);
    plan_->index->build(runs, shape, entries.append());
  }
}

void MethodState::truncate(std::int32_t length) {
  for (Layer& layer : layers_) {
    for (EntryStore& entries : layer.entries)
      entries.truncate(std::min(entries.size(), length / plan_->index->entry_tokens()));
    for (TurnedWindow& near : layer.near) near.clear();
    layer.ready_for = layer.queried_for = -1;
    for (auto& units : layer.attended) units.clear();
    for (Ranking& ranking : layer.ranked) ranking = {};
    layer.tap.n = std::max(0, layer.tap.n - std::max(0, layer.tap.end - length));
    layer.tap.end = std::min(layer.tap.end, length);
    layer.pending = {};
    if (length > 0) continue;
    layer.budget = 0;
    for (auto& mass : layer.mass) mass.clear();
  }
}

MethodState MethodState::index_of_prefix(std::int32_t length) const {
  MethodState fresh(plan_);
  for (std::size_t l = 0; l < layers_.size(); ++l) fresh.layers_[l].entries = layers_[l].entries;
  fresh.truncate(length);
  return fresh;
}

RegionRules MethodState::rules(std::int32_t l) const {
  RegionRules rules = plan_->rules;
  if (!plan_->recipe.norm) return rules;
  const std::int32_t budget = layers_[static_cast<std::size_t>(l)].budget;
  rules.budget = budget > 0 ? budget : std::numeric_limits<std::int32_t>::max();
  return rules;
}

void MethodState::commit(SequenceCache& cache) {
  const auto start = std::chrono::steady_clock::now();
  bool prefill_end = false;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    Pending pending = std::exchange(layer.pending, {});
    prefill_end = prefill_end || pending.prefill_end;
    if (pending.prefill_end) layer.tap = {};
    if (pending.budget > 0) layer.budget = pending.budget;
    if (!pending.mass.empty()) layer.mass.swap(pending.mass);
    LayerStats& stats = stats_.layers[l];
    for (std::size_t h = 0; h < pending.kept.size(); ++h) {
      const auto index = static_cast<std::int32_t>(l), head = static_cast<std::int32_t>(h);
      std::int32_t n = 0;
      for (const TokenRange& r : pending.kept[h]) {
        if (!layer.mass.empty()) {
          auto& mass = layer.mass[h];
          std::copy(mass.begin() + r.begin, mass.begin() + r.end, mass.begin() + n);
        }
        n += r.end - r.begin;
      }
      if (!layer.mass.empty()) layer.mass[h].resize(static_cast<std::size_t>(n));
      stats.dropped_tokens += cache.n_stored(index, head) - n;
      cache.keep(index, head, pending.kept[h]);
    }
  }
  if (prefill_end)
    stats_.prefill_end_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::size_t MethodState::index_bytes() const {
  std::size_t bytes = 0;
  for (const Layer& layer : layers_)
    for (const EntryStore& entries : layer.entries) bytes += entries.bytes();
  return bytes;
}

std::size_t MethodState::state_bytes() const {
  std::size_t bytes = query_below_.size() * sizeof(float);
  for (const Layer& layer : layers_) {
    bytes += (layer.last_query.size() + layer.tap.q.size() + layer.tap.lse.size()) * sizeof(float);
    for (const TurnedWindow& near : layer.near) bytes += near.bytes();
    for (const auto& mass : layer.mass) bytes += mass.size() * sizeof(float);
    for (const auto* list : {&layer.attended, &layer.ahead})
      for (const auto& units : *list) bytes += units.capacity() * sizeof(std::int32_t);
    for (const Ranking& ranking : layer.ranked)
      bytes += (ranking.units.capacity() + ranking.ends.capacity()) * sizeof(std::int32_t);
  }
  return bytes;
}

}  // namespace mneme
