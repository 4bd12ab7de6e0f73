#include "src/attention/method_state.h"

#include <algorithm>

#include "src/base/check.h"

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
  if (!plan_->selects()) return;
  if (plan_->layer_choice && plan_->layer_choice->entropy)
    cut_.emplace(plan_->compressed_layers(), plan_->layer_choice->n_units, plan_->layer_choice->entropy->reversed);
  const auto n_selections = static_cast<std::size_t>(plan_->selection_heads());
  for (std::int32_t l = 0; l < shape.n_layers; ++l) {
    if (plan_->dense_layer(l)) continue;
    Layer& layer = layers_[static_cast<std::size_t>(l)];
    if (plan_->layer_choice) {
      layer.memory.emplace(*plan_);
      layer.attended.resize(n_selections);
      continue;
    }
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
  if (plan_->index == nullptr || plan_->dense_layer(l)) return;
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

void MethodState::set_question_span(std::int32_t begin, std::int32_t end) {
  question_span_ = {begin, end};
  for (Layer& layer : layers_)
    if (layer.memory) {
      layer.memory->question.clear();
      layer.memory->question_rows.clear();
      layer.memory->question_mass.clear();
    }
}

std::int32_t MethodState::compressed_number(std::int32_t l) const {
  return static_cast<std::int32_t>(std::count(plan_->dense.begin(), plan_->dense.begin() + l, false));
}

void MethodState::step_back(std::int32_t length) {
  for (Layer& layer : layers_) {
    for (EntryStore& entries : layer.entries)
      entries.truncate(std::min(entries.size(), length / plan_->index->entry_tokens()));
    for (TurnedWindow& near : layer.near) near.clear();
    layer.ready_for = layer.queried_for = -1;
    for (auto& units : layer.attended) units.clear();
    for (Ranking& ranking : layer.ranked) ranking = {};
  }
}

MethodState MethodState::index_of_prefix(std::int32_t length) const {
  MethodState fresh(plan_);
  if (plan_->layer_choice) {
    if (length == 0) return fresh;
    for (std::size_t l = 0; l < layers_.size(); ++l) fresh.layers_[l].memory = layers_[l].memory;
    fresh.cut_ = cut_;
    return fresh;
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) fresh.layers_[l].entries = layers_[l].entries;
  fresh.truncate(length);
  return fresh;
}

void MethodState::truncate(std::int32_t length) {
  MNEME_CHECK(can_truncate(length), "the state cannot go back to {} tokens", length);
  step_back(length);
  if (!plan_->layer_choice) return;
  for (Layer& layer : layers_)
    if (layer.memory) layer.memory.emplace(*plan_);
  if (cut_)
    cut_.emplace(plan_->compressed_layers(), plan_->layer_choice->n_units, plan_->layer_choice->entropy->reversed);
}

std::size_t MethodState::index_bytes() const {
  std::size_t bytes = 0;
  for (const Layer& layer : layers_)
    for (const EntryStore& entries : layer.entries) bytes += entries.bytes();
  for (const Layer& layer : layers_)
    if (layer.memory) bytes += layer.memory->units.bytes();
  return bytes;
}

std::size_t MethodState::state_bytes() const {
  std::size_t bytes = query_below_.size() * sizeof(float) + (cut_ ? cut_->bytes() : 0);
  for (const Layer& layer : layers_) {
    bytes += layer.last_query.size() * sizeof(float);
    for (const TurnedWindow& near : layer.near) bytes += near.bytes();
    if (layer.memory) bytes += layer.memory->bytes();
    for (const auto* list : {&layer.attended, &layer.ahead})
      for (const auto& units : *list) bytes += units.capacity() * sizeof(std::int32_t);
    for (const Ranking& ranking : layer.ranked)
      bytes += (ranking.units.capacity() + ranking.ends.capacity()) * sizeof(std::int32_t);
  }
  return bytes;
}

}  // namespace mneme
