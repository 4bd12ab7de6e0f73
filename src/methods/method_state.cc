#include "src/methods/method_state.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "src/base/check.h"
#include "src/base/seconds.h"
#include "src/base/size32.h"
#include "src/methods/list_units.h"

namespace mneme {

Ranking::Cut Ranking::take(std::int32_t n, std::vector<std::int32_t>& taken) const {
  MNEME_CHECK(n >= 0 && n <= n_tokens(), "{} of {} ranked tokens", n, n_tokens());
  taken.clear();
  if (n == 0) return {};
  const std::size_t last = std::lower_bound(ends.begin(), ends.end(), n) - ends.begin();
  taken.assign(units.begin(), units.begin() + (last + 1));
  std::sort(taken.begin(), taken.end());
  return {units[last], n - (last == 0 ? 0 : ends[last - 1])};
}

MethodState::MethodState(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {
  const MethodShape& shape = plan_->shape;
  layers_.resize(shape.n_layers);
  stats_.layers.resize(layers_.size());
  const std::int64_t queries = std::int64_t{shape.n_heads} * shape.head_dim;
  const std::size_t n_kv = shape.n_kv_heads;
  if (plan_->key_basis == KeyBasis::kPreRope)
    for (Layer& layer : layers_) layer.local.assign(n_kv, RotatedWindow(plan_->rules.recent));
  if (plan_->observed_rows == Plan::kAllRows)
    for (std::int32_t l = 0; l < shape.n_layers; ++l)
      if (plan_->compressed(l)) layers_[l].mass.resize(n_kv);
  if (!plan_->selects()) return;
  if (plan_->layer_selection && plan_->layer_selection->entropy)
    cut_.emplace(plan_->compressed_layers(), plan_->layer_selection->n_units,
                 plan_->layer_selection->entropy->reversed);
  const std::size_t n_selections = plan_->selection_heads();
  for (std::int32_t l = 0; l < shape.n_layers; ++l) {
    if (plan_->dense_layer(l)) continue;
    Layer& layer = layers_[l];
    if (plan_->layer_selection) {
      layer.memory.emplace(*plan_);
      layer.attended.resize(n_selections);
      continue;
    }
    layer.entries.assign(n_kv, EntryStore(plan_->index->entry_bytes(shape.attention())));
    if (plan_->index->frame_floats(shape.attention()) > 0) layer.frames.resize(n_kv);
    layer.attended.resize(n_selections);
    layer.held_for.assign(n_selections, -1);
    if (plan_->selection.top_p < 1) layer.kept_tokens.resize(n_selections);
    if (plan_->speculative()) layer.speculative.resize(n_selections);
    if (plan_->ranks()) layer.ranked.resize(n_selections);
    if (plan_->ranks()) layer.cut.resize(n_selections);
    if (plan_->lists) {
      layer.partition = Partition(plan_->lists->partition);
      layer.tables.assign(n_kv, UnitTable(plan_->lists->copy ? shape.attention().token_bytes() : 0));
    }
    if (!plan_->gated()) continue;
    if (plan_->cosine_gate()) layer.last_query.resize(queries);
    stats_.layers[l].gate_checks.assign(plan_->gates(), 0);
    stats_.layers[l].corrections.assign(plan_->gates(), 0);
  }
}

bool MethodState::asks_gate(std::int32_t l, std::int32_t length) const {
  if (!plan_->cosine_gate() || plan_->dense_layer(l) || layer(l).queried_for != length) return false;
  return plan_->keeps() || layer(l).ready_for == length;
}

void MethodState::close_units(std::int32_t l, std::int32_t kv_head, const SequenceCache& cache) {
  if (plan_->index == nullptr || plan_->dense_layer(l)) return;
  if (plan_->lists) return close_lists(l, kv_head, cache);
  EntryStore& entries = layer(l).entries[kv_head];
  if (entries.entry_bytes() == 0) return;
  const std::int32_t e = plan_->index->entry_tokens(), complete = cache.length() / e;
  const AttentionShape shape = plan_->shape.attention();
  fit_frame(l, kv_head, cache, complete);
  const float* frame = this->frame(l, kv_head);
  thread_local std::vector<KvRun> runs;
  while (entries.size() < complete) {
    runs.clear();
    const std::int32_t begin = entries.size() * e;
    cache.append_runs(l, kv_head, begin, begin + e, runs);
    plan_->index->build_in(frame, runs, shape, entries.append());
  }
}

void MethodState::fit_frame(std::int32_t l, std::int32_t kv_head, const SequenceCache& cache, std::int32_t complete) {
  if (layer(l).frames.empty()) return;
  KeyFrame& frame = layer(l).frames[kv_head];
  const std::int32_t pages = KeyFrame::pages_for(complete);
  if (frame.pages == pages) return;
  const AttentionShape shape = plan_->shape.attention();
  std::vector<float> values(plan_->index->frame_floats(shape));
  plan_->index->fit({.cache = &cache, .layer = l, .kv_head = kv_head}, pages, shape, values.data());
  frame = {.values = std::make_shared<const std::vector<float>>(std::move(values)), .pages = pages};
  layer(l).entries[kv_head].truncate(0);
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
  return count32(std::count(plan_->dense.begin(), plan_->dense.begin() + l, false));
}

void MethodState::close_lists(std::int32_t l, std::int32_t kv_head, const SequenceCache& cache) {
  const std::size_t h = kv_head;
  UnitTable& table = layer(l).tables[h];
  const std::span<const UnitRange> all = layer(l).partition.ranges();
  const std::int32_t from = plan_->lists->partition.sink + table.n_tokens();
  const auto first = std::lower_bound(all.begin(), all.end(), from,
                                      [](const UnitRange& range, std::int32_t at) { return range.begin < at; });
  append_list_units(all.subspan(first - all.begin()), *plan_, cache, l, kv_head, table, layer(l).entries[h]);
}

bool MethodState::has_units_to_close(std::int32_t l, std::int32_t kv_head, std::int32_t length) const {
  if (plan_->index == nullptr || plan_->dense_layer(l)) return false;
  const std::size_t h = kv_head;
  const Partition& partition = layer(l).partition;
  if (plan_->lists) return plan_->lists->partition.sink + layer(l).tables[h].n_tokens() < partition.grouped();
  const EntryStore& entries = layer(l).entries[h];
  return entries.entry_bytes() > 0 && entries.size() < length / plan_->index->entry_tokens();
}

void MethodState::see_prompt(std::int32_t l, std::int32_t length, bool ends) {
  if (!plan_->lists || plan_->dense_layer(l)) return;
  layer(l).partition.add_prompt(length);
  if (ends) layer(l).partition.end_prompt();
}

void MethodState::see_output(std::int32_t l, std::int32_t length, bool boundary) {
  if (!plan_->lists || plan_->dense_layer(l)) return;
  layer(l).partition.add_prompt(length - 1);
  layer(l).partition.add_output(boundary);
}

void MethodState::see_boundary(std::int32_t l) {
  if (plan_->lists && !plan_->dense_layer(l)) layer(l).partition.begin_segment();
}

Region MethodState::region(std::int32_t l, std::int32_t kv_head, std::int32_t length) const {
  if (plan_->full_head(l, kv_head)) return {};
  if (!plan_->lists) return region_at(rules(l), length);
  const Layer& state = layer(l);
  return list_region_at(rules(l), length, state.partition.grouped(), state.tables[kv_head].size());
}

std::int32_t MethodState::unit_tokens(std::int32_t l, std::int32_t kv_head, std::int32_t unit) const {
  return plan_->lists ? layer(l).tables[kv_head].n_tokens(unit) : plan_->rules.unit_tokens;
}

// Tokens of a list unit that a head attends.
std::int32_t MethodState::n_selected(std::int32_t l, std::int32_t head, std::int32_t kv_head, std::int32_t unit) const {
  const Ranking::Cut& cut = layer(l).cut[head];
  return unit == cut.unit ? cut.n_tokens : unit_tokens(l, kv_head, unit);
}

std::int32_t MethodState::append_selected_runs(std::int32_t l, std::int32_t head, std::int32_t kv_head,
                                               const SequenceCache& cache, std::vector<KvRun>& runs) const {
  const std::vector<std::int32_t>& units = layer(l).attended[head];
  std::int32_t n_tokens = 0;
  if (plan_->lists) {
    const UnitTable& table = layer(l).tables[kv_head];
    constexpr std::size_t kPrefetchDistance = 12;
    for (std::size_t i = 0; i < units.size(); ++i) {
      if (i + kPrefetchDistance < units.size()) table.prefetch(units[i + kPrefetchDistance]);
      const std::int32_t n = n_selected(l, head, kv_head, units[i]);
      table.append_runs(units[i], n, cache, l, kv_head, runs);
      n_tokens += n;
    }
    return n_tokens;
  }
  return cache.append_units(l, kv_head, units, plan_->rules.unit_tokens, runs);
}

void MethodState::append_copied_run(std::int32_t l, std::int32_t head, std::int32_t kv_head, std::int32_t n_tokens,
                                    const SequenceCache& cache, std::vector<KvRun>& runs) {
  if (n_tokens == 0) return;
  Ranking& ranking = layer(l).ranked[head];
  const std::size_t token_bytes = cache.shape().token_bytes(), bytes = n_tokens * token_bytes;
  if (ranking.n_copied < n_tokens) {
    const UnitTable& table = layer(l).tables[kv_head];
    thread_local std::vector<KvRun> from;
    from.clear();
    constexpr std::size_t kPrefetchDistance = 12;
    for (std::size_t i = 0; i < ranking.units.size(); ++i) {
      const std::int32_t before = i == 0 ? 0 : ranking.ends[i - 1];
      if (before >= n_tokens) break;
      if (i + kPrefetchDistance < ranking.units.size()) table.prefetch(ranking.units[i + kPrefetchDistance]);
      table.append_runs(ranking.units[i], std::min(ranking.ends[i], n_tokens) - before, cache, l, kv_head, from);
    }
    // Room for the whole ranking: allocation costs more than the copies.
    if (ranking.copy == nullptr || ranking.copy.use_count() > 1 || ranking.copy->size() < bytes)
      ranking.copy = std::make_shared<Buffer>(ranking.n_tokens() * token_bytes);
    std::byte* to = ranking.copy->data();
    for (const KvRun& run : from) {
      const std::size_t n = run.n_tokens * token_bytes;
      std::memcpy(to, run.kv, n);
      to += n;
    }
    ranking.n_copied = n_tokens;
  }
  runs.push_back({ranking.copy->data(), n_tokens});
}

void MethodState::mark_selected(std::int32_t l, std::int32_t head, std::int32_t kv_head,
                                std::span<std::uint8_t> attended) const {
  for (std::int32_t u : layer(l).attended[head]) {
    const std::int32_t p = plan_->rules.unit_tokens;
    const std::int32_t n = plan_->lists ? n_selected(l, head, kv_head, u) : p;
    for (std::int32_t i = 0; i < n; ++i) {
      const std::int32_t t = plan_->lists ? layer(l).tables[kv_head].token(u, i) : u * p + i;
      attended[t] = 1;
    }
  }
}

void MethodState::step_back(std::int32_t length) {
  if (length == 0) {
    late_ = {};
  } else if (late_.get() != nullptr) {
    late_.get()->take_back();
  }
  for (Layer& layer : layers_) {
    layer.partition.truncate(length);
    for (std::size_t h = 0; h < layer.entries.size(); ++h) {
      EntryStore& entries = layer.entries[h];
      std::int32_t complete = length / plan_->index->entry_tokens();
      if (plan_->lists) {
        UnitTable& table = layer.tables[h];
        for (complete = table.size(); complete > 0 && table.token(complete - 1, 0) >= layer.partition.grouped();)
          --complete;
        table.truncate(complete);
      }
      entries.truncate(std::min(entries.size(), complete));
      if (!layer.frames.empty() && layer.frames[h].pages > entries.size()) {
        layer.frames[h] = {};
        entries.truncate(0);
      }
    }
    for (RotatedWindow& local : layer.local) local.clear();
    layer.ready_for = layer.queried_for = -1;
    std::fill(layer.held_for.begin(), layer.held_for.end(), -1);
    for (auto& units : layer.attended) units.clear();
    for (Ranking& ranking : layer.ranked) ranking = {};
    for (Ranking::Cut& cut : layer.cut) cut = {};
    layer.observed_queries.n = std::max(0, layer.observed_queries.n - std::max(0, layer.observed_queries.end - length));
    layer.observed_queries.end = std::min(layer.observed_queries.end, length);
    layer.pending = {};
    for (auto& pages : layer.stamps)
      while (!pages.empty() && pages.back().end >= length) pages.pop_back();
    layer.prompt_end = std::min(layer.prompt_end, length);
    if (length > 0) continue;
    layer.budget = 0;
    for (auto& mass : layer.mass) mass.clear();
  }
}

MethodState MethodState::index_of_prefix(std::int32_t length) const {
  MethodState fresh(plan_);
  if (plan_->layer_selection) {
    if (length == 0) return fresh;
    for (std::size_t l = 0; l < layers_.size(); ++l) fresh.layers_[l].memory = layers_[l].memory;
    fresh.cut_ = cut_;
    return fresh;
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    fresh.layers_[l].entries = layers_[l].entries;
    fresh.layers_[l].frames = layers_[l].frames;
    fresh.layers_[l].partition = layers_[l].partition;
    fresh.layers_[l].tables = layers_[l].tables;
    // Clusters at the end of the prompt, and segments, depend on where that prompt and its answer ended.
    if (plan_->lists && !plan_->dense_layer(count32(l)))
      fresh.layers_[l].partition.begin_as_prompt(std::min(length, layers_[l].partition.length()));
  }
  fresh.truncate(length);
  return fresh;
}

RegionRules MethodState::rules(std::int32_t l) const {
  RegionRules rules = plan_->rules;
  if (!plan_->norm) return rules;
  const std::int32_t budget = layers_[l].budget;
  // A short prompt may determine a budget below the sinks, which are everything until there are more tokens.
  rules.budget = budget > 0 ? std::max(budget, rules.sink) : std::numeric_limits<std::int32_t>::max();
  return rules;
}

void MethodState::settle(SequenceCache& cache) {
  if (!late_.any()) return;
  late_.get()->learn(*this, cache);
  commit(cache);
}

void MethodState::commit(SequenceCache& cache) {
  if (late_.get() != nullptr) late_.get()->commit();
  const auto start = std::chrono::steady_clock::now();
  bool prefill_end = false;
  std::vector<Pending> decided(layers_.size());
  std::vector<SequenceCache::HeadRanks> kept;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    Pending& pending = decided[l];
    pending = std::exchange(layer.pending, {});
    prefill_end = prefill_end || pending.prefill_end;
    if (pending.prefill_end) layer.observed_queries = {};
    if (pending.budget > 0) layer.budget = pending.budget;
    if (!pending.mass.empty()) layer.mass.swap(pending.mass);
    if (!pending.stamps.empty()) layer.stamps.swap(pending.stamps);
    if (pending.prefill_end) layer.prompt_end = cache.length();
    LayerStats& stats = stats_.layers[l];
    for (std::size_t h = 0; h < pending.kept.size(); ++h) {
      const std::int32_t index = count32(l), head = count32(h);
      std::int32_t n = 0;
      for (const TokenRange& r : pending.kept[h]) {
        if (!layer.mass.empty()) {
          auto& mass = layer.mass[h];
          std::copy(mass.begin() + r.begin, mass.begin() + r.end, mass.begin() + n);
        }
        n += r.end - r.begin;
      }
      if (!layer.mass.empty()) layer.mass[h].resize(n);
      stats.retention.dropped_tokens += cache.n_stored(index, head) - n;
      kept.push_back({index, head, pending.kept[h]});
    }
  }
  cache.keep(kept);
  if (prefill_end) stats_.prefill_end_seconds += seconds_since(start);
}

void MethodState::truncate(std::int32_t length) {
  MNEME_CHECK(can_truncate(length), "the state cannot go back to {} tokens", length);
  step_back(length);
  if (!plan_->layer_selection) return;
  for (Layer& layer : layers_)
    if (layer.memory) layer.memory.emplace(*plan_);
  if (cut_)
    cut_.emplace(plan_->compressed_layers(), plan_->layer_selection->n_units,
                 plan_->layer_selection->entropy->reversed);
}

std::size_t MethodState::index_bytes() const {
  std::size_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const EntryStore& entries : layer.entries) bytes += entries.bytes();
    for (const UnitTable& table : layer.tables) bytes += table.list_bytes();
    if (layer.memory) bytes += layer.memory->units.bytes();
  }
  return bytes;
}

std::size_t MethodState::copy_bytes() const {
  std::size_t bytes = 0;
  for (const Layer& layer : layers_)
    for (const UnitTable& table : layer.tables) bytes += table.copy_bytes();
  return bytes;
}

std::size_t MethodState::state_bytes() const {
  std::size_t bytes = cut_ ? cut_->bytes() : 0;
  for (const Layer& layer : layers_) {
    bytes +=
        (layer.last_query.size() + layer.observed_queries.q.size() + layer.observed_queries.lse.size()) * sizeof(float);
    for (const RotatedWindow& local : layer.local) bytes += local.bytes();
    for (const KeyFrame& frame : layer.frames)
      bytes += frame.values == nullptr ? 0 : frame.values->size() * sizeof(float);
    for (const auto& mass : layer.mass) bytes += mass.size() * sizeof(float);
    for (const auto& pages : layer.stamps) bytes += pages.size() * sizeof(PageStamp);
    if (layer.memory) bytes += layer.memory->bytes();
    for (const auto* list : {&layer.attended, &layer.speculative})
      for (const auto& units : *list) bytes += units.size() * sizeof(std::int32_t);
    bytes += layer.partition.bytes();
    for (const Ranking& ranking : layer.ranked) {
      const std::int32_t room = ranking.n_copied == 0 ? 0 : ranking.n_tokens();
      bytes += (ranking.units.size() + ranking.ends.size()) * sizeof(std::int32_t) +
               std::size_t{4} * room * plan_->shape.head_dim;
    }
  }
  return bytes;
}

}  // namespace mneme
