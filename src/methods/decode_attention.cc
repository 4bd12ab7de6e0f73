#include "src/methods/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/methods/decode_item.h"
#include "src/methods/fixed_scores.h"
#include "src/methods/stats/audit.h"
#include "src/ops/attention/attention.h"
#include "src/selection/gate/gate.h"
#include "src/selection/pool/group_pool.h"

namespace mneme {
namespace {

// Units of `now` that are not in `before`; both ascending. Through a bitmap: merging two lists of 2,048 tokens
// mispredicts every other branch (20 us, this 3).
std::int64_t count_new(const std::vector<std::int32_t>& now, const std::vector<std::int32_t>& before,
                       std::vector<std::uint64_t>& marks) {
  if (now.empty() || before.empty()) return now.size();
  marks.assign(std::max(now.back(), before.back()) / 64 + 1, 0);
  const auto at = [&](std::uint32_t u) -> std::uint64_t& { return marks[u / 64]; };
  for (const std::uint32_t u : before) at(u) |= std::uint64_t{1} << (u % 64);
  std::uint64_t known = 0;
  for (const std::uint32_t u : now) known += at(u) >> (u % 64) & 1;
  return now.size() - known;
}

bool same_selection(const Region& a, const Region& b) {
  return a.first_unit == b.first_unit && a.last_unit == b.last_unit && a.n_select == b.n_select;
}

// softmax(scale * scores), in place.
void softmax(std::span<float> scores, float scale) {
  float largest = -INFINITY;
  for (float x : scores) largest = std::max(largest, x);
  double sum = 0;
  for (float& x : scores) {
    x = std::exp(scale * (x - largest));
    sum += x;
  }
  for (float& x : scores) x = static_cast<float>(x / sum);
}

// Sets attended[t] = 1 for the tokens that a selection head attends in this step.
void mark_attended(const MethodState& method, std::int32_t layer, std::int32_t head, std::int32_t kv_head,
                   const Region& region, std::int32_t length, std::vector<std::uint8_t>& attended) {
  std::fill(attended.begin(), attended.end(), std::uint8_t{0});
  if (method.keeps_tokens(layer) && !region.everything) {
    for (const std::int32_t t : method.layer(layer).kept_tokens[head]) attended[t] = 1;
    return;
  }
  const auto mark = [&](std::int32_t begin, std::int32_t end) {
    std::fill(attended.begin() + begin, attended.begin() + end, std::uint8_t{1});
  };
  mark(0, region.sink);
  mark(region.recent_from, length);
  if (method.plan().selects()) method.mark_selected(layer, head, kv_head, attended);
}

}  // namespace

DecodeAttention::DecodeAttention(const CpuContext& context, const RopeTable& rope)
    : context_(context),
      remapped_{.table = rotation_table(rope), .rotator = QueryRotator(rope)},
      by_layer_{.selector = LayerSelector(context)} {
  workers_.resize(context.pool->size());
}
DecodeAttention::~DecodeAttention() = default;

void DecodeAttention::run(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape) {
  if (rows.empty()) return;
  select_now_.clear();
  for (const DecodeRow& row : rows) gate_row(layer, row, shape);
  build_units(layer, rows);
  rotate_rows(layer, rows, shape);
  select_layers(layer, rows, shape);
  items_.clear();
  first_item_.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    first_item_.push_back(items_.size());
    plan_row(layer, rows[r], r, shape);
  }
  if (runs_.size() < items_.size()) runs_.resize(items_.size());
  for (std::size_t i = 0; i < items_.size(); ++i) items_[i].runs = &runs_[i];
  score_layers(layer, shape);
  const auto prepare = [&](std::int64_t begin, std::int64_t end, int w) {
    for (std::int64_t i = begin; i < end; ++i) {
      select(layer, items_[i], shape, workers_[w]);
      gather_runs(layer, items_[i]);
    }
  };
  const std::int64_t n_items = items_.size();
  // Without a selection there are a few long runs: gathering them is faster than distributing the work.
  if (std::any_of(items_.begin(), items_.end(), [](const Item& i) { return i.selects(); }))
    context_.pool->parallel_for(n_items, 1, prepare);
  else
    prepare(0, n_items, 0);
  attend(shape);
  add_masses(layer, rows, shape);
  if (observer_ != nullptr)
    for (const DecodeRow& row : rows)
      if (row.window == 0) observer_->see(layer, row, shape);
  observe(layer, rows, shape);
}

void DecodeAttention::close_units(std::int32_t layer, std::span<const DecodeRow> rows) {
  for (const DecodeRow& row : rows)
    if (row.method != nullptr) row.method->see_prompt(layer, row.cache->length(), row.prefill_left == 0);
  build_units(layer, rows);
}

void DecodeAttention::build_units(std::int32_t layer, std::span<const DecodeRow> rows) {
  struct Todo {
    const DecodeRow* row;
    std::int32_t kv_head;
  };
  thread_local std::vector<Todo> todo;
  todo.clear();
  for (const DecodeRow& row : rows) {
    if (row.method == nullptr) continue;
    for (std::int32_t h = 0; h < row.cache->shape().n_kv_heads; ++h)
      if (row.method->has_units_to_close(layer, h, row.cache->length())) todo.push_back({&row, h});
  }
  const std::vector<Todo>& list = todo;  // workers must use this thread's list, not their own thread_local
  context_.pool->parallel_for(list.size(), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Todo& t = list[i];
      t.row->method->close_units(layer, t.kv_head, *t.row->cache);
    }
  });
}

// Evaluates gates by cosines (src/selection/gate/gate.h): which KV heads select with this step's query, and which
// attend an earlier selection; and whether a segment starts.
void DecodeAttention::gate_row(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) {
  const std::size_t n_kv = row.cache->shape().n_kv_heads, first = select_now_.size();
  select_now_.resize(first + n_kv, 1);
  if (row.method == nullptr || row.method->plan().dense_layer(layer)) return;
  const Plan& plan = row.method->plan();
  const SelectionPlan::Gate& gate = plan.selection.gate;
  const MethodState::Layer& state = row.method->layer(layer);
  LayerStats& stats = row.method->stats().layers[layer];
  const std::int32_t length = row.cache->length();
  const bool ready = state.ready_for == length, asked = row.method->asks_gate(layer, length);
  bool boundary = plan.cosine_gate() && !asked;  // an answer starts
  const std::size_t n_gates = asked ? plan.gates() : 0, heads = n_kv / std::max<std::size_t>(n_gates, 1);
  const std::int32_t q_heads = count32(heads) * shape.group;
  for (std::size_t g = 0; g < n_gates; ++g) {
    const std::size_t at = g * (q_heads * shape.head_dim);
    const bool moved = queries_moved(
        gate, pooled_cosine(gate.pool, row.q + at, state.last_query.data() + at, q_heads, shape.head_dim));
    boundary = boundary || moved;
    ++stats.gate_checks[g];
    stats.corrections[g] += moved ? 1 : 0;
    const bool selects = moved || selection_worn(gate, state.reused) || !ready;
    std::fill_n(select_now_.begin() + (first + g * heads), heads, selects);
  }
  row.method->see_output(layer, length, boundary);
}

void DecodeAttention::plan_row(std::int32_t layer, const DecodeRow& row, std::size_t r, const AttentionShape& shape) {
  const std::int32_t n_kv = row.cache->shape().n_kv_heads, length = row.cache->length();
  Item item;
  item.row = &row;
  item.remote_q = remapped_.q[r];
  const bool dense = row.method == nullptr || row.method->plan().dense_layer(layer);
  const bool within = !dense && length <= row.method->rules(layer).budget;  // the budget
  item.everything = dense || within;
  if (item.everything || !row.method->plan().selects()) {
    for (std::int32_t h = 0; h < n_kv; ++h) {
      item.head = item.kv_head = h;
      if (!dense) item.region = row.method->region(layer, h, length);
      item.everything = dense || item.region.everything;
      items_.push_back(item);
    }
    return;
  }
  const Plan& plan = row.method->plan();
  const std::vector<Ranking>& ranked = row.method->layer(layer).ranked;
  if (plan.layer_selection) {
    const MethodState::Layer& state = row.method->layer(layer);
    item.region = row.method->region(layer, 0, length);
    item.region.n_select = size32(state.attended[0]);
    item.new_units = by_layer_.replaced[r];
    item.index_bytes = (item.region.last_unit - item.region.first_unit) * state.memory->units.entry_bytes() / n_kv;
    for (item.kv_head = 0; item.kv_head < n_kv; ++item.kv_head) items_.push_back(item);
    return;
  }
  const std::int32_t heads_per_kv = plan.by_query_head() ? shape.group : 1;
  item.per_query_head = plan.by_query_head();
  item.select_speculative = plan.speculative();
  item.asks_mass = plan.mass_gate() && row.method->layer(layer).ready_for == length;
  for (std::int32_t m = 0; m < n_kv; ++m) {
    item.kv_head = m;
    item.region = row.method->region(layer, m, length);
    item.everything = item.region.everything;
    for (std::int32_t h = 0; h < heads_per_kv; ++h) {
      item.head = m * heads_per_kv + h;
      // A ranking made just above the budget may be too short for a step with a shorter window.
      const bool short_ranking = plan.ranks() && ranked[item.head].n_tokens() < item.region.select_tokens;
      item.select_now = !item.asks_mass && (short_ranking || select_now_[r * n_kv + m] != 0);
      items_.push_back(item);
    }
  }
}

// Score, pool, select: for this step, for the next one, or both.
void DecodeAttention::select(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker) {
  if (item.everything || item.row->method->plan().index == nullptr) return;
  const Plan& plan = item.row->method->plan();
  MethodState::Layer& state = item.row->method->layer(layer);
  std::vector<std::int32_t>& attended = state.attended[item.head];
  worker.before.assign(attended.begin(), attended.end());
  if (plan.ranks()) {
    Ranking& ranking = state.ranked[item.head];
    if (item.select_now) rank(layer, item, shape, worker, ranking);
    state.cut[item.head] = ranking.take(item.region.select_tokens, attended);
  } else if (item.asks_mass) {
    select_by_mass(layer, item, shape, worker, attended);
  } else if (plan.selection.hold > 0) {
    const bool held = state.held_for[item.head] == item.length() && size32(attended) == item.region.n_select;
    if (held)
      hold_units(layer, item, shape, worker, attended);
    else
      select_units(layer, item, item.region, shape, worker, attended);
    state.held_for[item.head] = item.length() + 1;
  } else if (item.select_now) {
    select_units(layer, item, item.region, shape, worker, attended);
  } else {
    attended.swap(state.speculative[item.head]);
  }
  item.new_units = count_new(attended, worker.before, worker.marks);
  if (item.select_speculative) {
    std::vector<std::int32_t>& speculative = state.speculative[item.head];
    const Region next = region_at(item.row->method->rules(layer), item.length() + 1);
    if (item.asks_mass && same_selection(item.region, next)) {
      speculative.swap(worker.fresh);
    } else if (item.select_now && same_selection(item.region, next)) {
      speculative.assign(attended.begin(), attended.end());
    } else {
      select_units(layer, item, next, shape, worker, speculative);
    }
  }
  if (item.row->method->keeps_tokens(layer)) keep_top_p(layer, item, shape, worker);
}

std::span<const float> DecodeAttention::scores_of(std::int32_t layer, Item& item, const Region& region,
                                                  const AttentionShape& shape, Worker& worker) {
  return item.shared.empty() ? score(layer, item, region, shape, worker) : item.shared;
}

std::span<const float> DecodeAttention::select_units(std::int32_t layer, Item& item, const Region& region,
                                                     const AttentionShape& shape, Worker& worker,
                                                     std::vector<std::int32_t>& units) {
  units.resize(region.n_select);
  if (region.n_select == 0) return {};
  const std::span<const float> scores = scores_of(layer, item, region, shape, worker);
  const std::int32_t found = topk_cpu(scores, region.n_select, units.data(), worker.rank.topk);
  MNEME_CHECK(found == region.n_select, "{} of {} units selected from {}", found, region.n_select, scores.size());
  for (std::int32_t& u : units) u += region.first_unit;
  return scores;
}

// Evaluates the gate by missing mass (src/selection/gate/gate.h): attends the speculative selection, or, where it lacks
// too much of this step's mass, this step's selection, which is then in worker.fresh.
void DecodeAttention::select_by_mass(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker,
                                     std::vector<std::int32_t>& attended) {
  const Plan& plan = item.row->method->plan();
  std::vector<std::int32_t>& speculative = item.row->method->layer(layer).speculative[item.head];
  const std::span<const float> scores = select_units(layer, item, item.region, shape, worker, worker.fresh);
  const auto counted = [&](const std::vector<std::int32_t>& units, std::vector<std::int32_t>& to) {
    to.clear();
    for (const std::int32_t u : units) to.push_back(u - item.region.first_unit);
    return std::span<const std::int32_t>(to);
  };
  const bool fixed =
      plan.selection.scores.domain == Domain::kAttention;  // the score behind the candidates is of sinks and window
  const std::span<const float> all(worker.scores.data(), scores.size() + (fixed ? 1 : 0));
  const float scale = plan.log_weight_scale();
  const float mass =
      missing_mass_cpu(all, scale, counted(worker.fresh, worker.wanted), counted(speculative, worker.there));
  float speculated = 1;
  if (plan.selection.gate.of_attended) {
    if (fixed) worker.there.push_back(size32(scores));
    speculated = missing_mass_cpu(all, scale, worker.there, {});
  }
  item.select_now = mass_lacks(plan.selection.gate, mass, speculated);
  if (item.select_now) {
    attended.assign(worker.fresh.begin(), worker.fresh.end());
  } else {
    attended.swap(speculative);
  }
}

// Ranks as many units as any step until the next selection may need.
void DecodeAttention::rank(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker,
                           Ranking& ranking) {
  const Plan& plan = item.row->method->plan();
  const Region& region = item.region;
  const std::span<const float> scores = score(layer, item, region, shape, worker);
  const auto size = [&](std::int32_t i) {
    return item.row->method->unit_tokens(layer, item.kv_head, region.first_unit + i);
  };
  // A budget set by the prompt may be the sinks only.
  const std::int32_t most =
      plan.keeps() ? std::max(0, item.row->method->rules(layer).budget - region.sink - 1) : region.select_tokens;
  rank_cpu(scores, size, most, ranking.units, worker.rank);
  ranking.ends.clear();
  ranking.n_copied = 0;
  for (std::int32_t& u : ranking.units) {
    ranking.ends.push_back(ranking.n_tokens() + size(u));
    u += region.first_unit;
  }
}

// One score per candidate.
std::span<const float> DecodeAttention::score(std::int32_t layer, Item& item, const Region& region,
                                              const AttentionShape& shape, Worker& worker) {
  const Plan& plan = item.row->method->plan();
  const SelectionPlan::Scores& form = plan.selection.scores;
  const std::int32_t n = region.last_unit - region.first_unit, d = shape.head_dim;
  const float* q = item.row->q + std::int64_t{item.kv_head} * shape.group * d;
  AttentionShape rows = shape;
  if (plan.by_query_head()) {
    q += (item.head - item.kv_head * shape.group) * d;
    rows.group = 1;
  } else if (pools_queries(form.pool)) {
    worker.query.resize(d);
    pool_queries(q, shape.group, d, form.pool, worker.query.data());
    q = worker.query.data();
    rows.group = 1;
  }
  // Of a softmax over the whole attention: sinks and window are one more unit, behind the candidates.
  const std::int32_t n_all = n + (form.domain == Domain::kAttention ? 1 : 0);
  worker.scores.resize(std::int64_t{rows.group} * n_all);
  const EntryStore* entries =
      plan.index->entry_bytes(shape) > 0 ? &item.row->method->layer(layer).entries[item.kv_head] : nullptr;
  ScoreTask task{.head = {.cache = item.row->cache,
                          .entries = entries,
                          .layer = layer,
                          .kv_head = item.kv_head,
                          .frame = item.row->method->frame(layer, item.kv_head)},
                 .q = q,
                 .shape = rows,
                 .first_unit = region.first_unit,
                 .last_unit = region.last_unit,
                 .alpha = form.alpha,
                 .scores = worker.scores.data(),
                 .score_stride = n_all};
  plan.index->score(task, worker.score);
  if (form.by_size) {
    for (std::int32_t u = 0; u < n; ++u) {
      const auto tokens = static_cast<float>(item.row->method->unit_tokens(layer, item.kv_head, region.first_unit + u));
      for (std::int32_t g = 0; g < rows.group; ++g) worker.scores[g * n_all + u] += std::log(tokens) / form.alpha;
    }
  }
  if (n_all > n) {
    task.scores += n;
    fixed_scores(task, region, worker.score);
  }
  item.index_bytes += plan.index->bytes_read(n, shape);
  if (pools_scores(form.pool))
    group_pool_cpu(worker.scores.data(), n_all, rows.group, n_all, form.pool, form.alpha, worker.scores.data());
  return std::span(worker.scores.data(), n);
}

void DecodeAttention::gather_runs(std::int32_t layer, Item& item) {
  const SequenceCache& cache = *item.row->cache;
  const std::int32_t length = item.length(), m = item.kv_head;
  const bool pre_rope = item.row->pre_rope();
  std::vector<KvRun>& runs = *item.runs;
  runs.clear();
  item.first_local = 0;
  const auto take = [&](std::int32_t begin, std::int32_t end) {
    if (begin < end) item.n_tokens += cache.append_runs(layer, m, begin, end, runs);
  };
  // The local part starts where keys are rotated, otherwise at the window.
  const auto take_local = [&](std::int32_t from) {
    const std::int32_t local = pre_rope ? std::max(from, length - item.row->method->plan().rules.recent) : from;
    take(from, local);
    item.first_local = runs.size();
    if (!pre_rope) return take(local, length);
    item.row->method->layer(layer).local[m].append_runs(local, length, item.row->method->plan().shape.attention(),
                                                        runs);
    item.n_tokens += length - local;
  };
  if (item.everything && pre_rope) {
    take_local(0);
  } else if (item.everything) {
    take(item.row->window > 0 ? std::max(0, length - item.row->window) : 0, length);
  } else if (item.selects() && item.row->method->keeps_tokens(layer)) {
    const std::vector<std::int32_t>& kept = item.row->method->layer(layer).kept_tokens[item.head];
    item.n_tokens += cache.append_units(layer, m, kept, 1, runs);
  } else {
    take(0, item.region.sink);
    if (item.selects() && item.row->method->plan().keeps() && item.row->method->plan().lists) {
      item.row->method->append_copied_run(layer, item.head, m, item.region.select_tokens, cache, runs);
      item.n_tokens += item.region.select_tokens;
    } else if (item.selects()) {
      item.n_tokens += item.row->method->append_selected_runs(layer, item.head, m, cache, runs);
    }
    take_local(item.region.recent_from);
  }
}

void DecodeAttention::attend(const AttentionShape& shape) {
  parts_.resize(2 * items_.size());
  lse_.resize(items_.size() * shape.group);
  for (const bool single : {false, true}) {
    heads_.clear();
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const Item& item = items_[i];
      if (item.per_query_head != single) continue;
      const std::int64_t at =
          (single ? std::int64_t{item.head} : std::int64_t{item.kv_head} * shape.group) * shape.head_dim;
      const std::span<const KvRun> runs = *item.runs;
      const std::size_t n_remote = item.remote_q == nullptr ? 0 : item.first_local;
      parts_[2 * i] = {.q = n_remote == 0 ? nullptr : item.remote_q + at, .runs = runs.first(n_remote)};
      parts_[2 * i + 1] = {.q = item.row->q + at, .runs = runs.subspan(n_remote)};
      const std::size_t first = n_remote == 0 ? 1 : 0;
      const std::size_t group_at = i * shape.group;
      float* lse = item.row->lse;
      if (lse != nullptr) lse += single ? item.head : item.kv_head * shape.group;
      if (lse == nullptr && !single) lse = lse_.data() + group_at;
      heads_.push_back({.parts = std::span(parts_).subspan(2 * i + first, 2 - first),
                        .out = item.row->out + at,
                        .lse = lse,
                        .sinks = item.row->sinks_of(single ? item.head : item.kv_head * shape.group)});
    }
    AttentionShape form = shape;
    if (single) form.group = 1;
    if (!heads_.empty()) attend_decode_cpu(heads_, form, context_);
  }
}

void DecodeAttention::observe(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape) {
  for (const Item& item : items_) {
    if (item.row->method == nullptr) continue;
    LayerStats& s = item.row->method->stats().layers[layer];
    s.attended_tokens += item.n_tokens;
    ++s.attended_heads;
    s.index_bytes_read += item.index_bytes;
    if (!item.selects()) continue;
    if (item.asks_mass) {
      ++s.gate_checks[item.head];
      s.corrections[item.head] += item.select_now ? 1 : 0;
    }
    ++(item.select_now || item.row->method->plan().layer_selection ? s.selections : s.reused);
    s.selected_units += item.row->method->layer(layer).attended[item.head].size();
    s.replaced_units += item.new_units;
  }
  const std::int64_t n_q = std::int64_t{rows[0].cache->shape().n_kv_heads} * shape.group * shape.head_dim;
  for (const DecodeRow& row : rows) {
    if (row.method == nullptr) continue;
    MethodState& method = *row.method;
    const std::int32_t length = row.cache->length();
    LayerStats& s = method.stats().layers[layer];
    const bool sparse = !method.plan().dense_layer(layer) && length > method.rules(layer).budget;
    ++s.steps;
    s.sparse_steps += sparse ? 1 : 0;
    if (sparse && audit_every_ > 0 && method.decode_steps() % audit_every_ == 0)
      audit(layer, row, remapped_.q[&row - rows.data()], shape);
    if (method.plan().gated() && !method.plan().dense_layer(layer)) remember(layer, row, sparse, n_q);
    if (layer + 1 == method.plan().shape.n_layers) method.count_decode_step();
  }
}

// Stores what the next step's gate compares with, and whether there is a selection to keep.
void DecodeAttention::remember(std::int32_t layer, const DecodeRow& row, bool sparse, std::size_t n_q) {
  const Plan& plan = row.method->plan();
  MethodState::Layer& state = row.method->layer(layer);
  const std::int32_t length = row.cache->length();
  const bool selected = std::any_of(items_.begin(), items_.end(),
                                    [&](const Item& i) { return i.row == &row && (i.everything || i.select_now); });
  state.reused = selected ? 0 : state.reused + 1;
  if (plan.cosine_gate() &&
      (plan.selection.gate.reference == GateReference::kPrevious || selected || state.queried_for != length))
    std::copy_n(row.q, n_q, state.last_query.begin());
  state.queried_for = length + 1;
  state.ready_for = sparse ? length + 1 : -1;
}

// Compares the true attention of this step with what was attended, per KV head.
void DecodeAttention::audit(std::int32_t layer, const DecodeRow& row, const float* remote_q,
                            const AttentionShape& shape) {
  const std::int32_t length = row.cache->length(), d = shape.head_dim, group = shape.group;
  const std::size_t n = length;
  LayerStats& stats = row.method->stats().layers[layer];
  std::vector<float> scores(n * group), truth(group * d);
  std::vector<std::uint8_t> attended(n);
  std::vector<KvRun> all;
  AuditScratch scratch;
  double difference = 0, norm = 0;
  std::int64_t audits = 0;
  // With remapped positions, the true attention is over all tokens at those positions.
  const bool pre_rope = row.cache->key_basis() == KeyBasis::kPreRope;
  const std::int32_t local = pre_rope ? std::max(0, length - row.method->plan().rules.recent) : 0;
  for (std::int32_t m = 0; m < row.cache->shape().n_kv_heads; ++m) {
    all.clear();
    row.cache->append_runs(layer, m, 0, local, all);
    const std::size_t n_remote = all.size();
    if (pre_rope)
      row.method->layer(layer).local[m].append_runs(local, length, shape, all);
    else
      row.cache->append_runs(layer, m, local, length, all);
    const float* q = row.q + std::int64_t{m} * group * d;
    const float* out = row.out + std::int64_t{m} * group * d;
    const float* remote = pre_rope ? remote_q + std::int64_t{m} * group * d : q;
    const std::span<const KvRun> runs = all;
    const DecodePart parts[] = {{.q = remote, .runs = runs.first(n_remote)}, {.q = q, .runs = runs.subspan(n_remote)}};
    const DecodeHead head{.parts = parts, .out = truth.data(), .sinks = row.sinks_of(m * group)};
    attend_decode_cpu(std::span(&head, 1), shape, context_);
    for (std::size_t i = 0; i < truth.size(); ++i) {
      difference += std::pow(out[i] - double{truth[i]}, 2);
      norm += std::pow(double{truth[i]}, 2);
    }
    key_score_cpu(remote, shape, runs.first(n_remote), scores.data(), length);
    key_score_cpu(q, shape, runs.subspan(n_remote), scores.data() + local, length);
    for (std::int32_t g = 0; g < group; ++g) softmax(std::span(scores).subspan(g * n, n), shape.scale);
    for (const Item& item : items_) {
      if (item.row != &row || item.kv_head != m) continue;
      mark_attended(*row.method, layer, item.head, m, item.region, length, attended);
      const std::int32_t first = item.per_query_head ? item.head - m * group : 0,
                         last = item.per_query_head ? first + 1 : group;
      const AuditedHead audited = audit_head(std::span(scores).subspan(first * n, (last - first) * n), last - first,
                                             attended, item.n_tokens, scratch);
      stats.audit.recall += audited.recall;
      stats.audit.mass += audited.mass;
      ++audits;
    }
  }
  stats.audit.samples += audits;
  stats.audit.error += static_cast<double>(audits) * std::sqrt(difference / std::max(norm, 1e-30));
}

}  // namespace mneme
