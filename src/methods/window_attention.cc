#include "src/methods/window_attention.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/ops/norm_rope/rotate_keys.h"

namespace mneme {
namespace {

// Minimum keys that a worker rotates: fewer are faster without a hand-over.
constexpr std::int64_t kRotateGrain = 64;

}  // namespace

void WindowAttention::run(std::int32_t layer, std::span<const WindowRows> chunks, const AttentionShape& shape) {
  while (chunks_.size() < chunks.size()) chunks_.emplace_back(rope_);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const WindowRows& rows = chunks[c];
    const Plan& plan = rows.method->plan();
    MNEME_CHECK(plan.window && rows.cache->key_basis() == plan.key_basis,
                "the method '{}' was not there when the sequence began", plan.name());
    rotate_chunk(layer, rows, shape, chunks_[c]);
    const std::int32_t first = rows.first(), end = rows.cache->length();
    const bool dense = plan.dense_layer(layer);
    for (std::int32_t begin = first; begin < end;) {
      const Window w{window_at(plan, dense, begin, end), &rows, &chunks_[c]};
      if (!plan.layer_selection || dense) {
        add_window(layer, w, shape);
      } else {
        flush(shape);
        select(layer, w, shape);
        add_window(layer, w, shape);
        flush(shape);
        learn(layer, w, shape);
      }
      begin = w.end;
    }
  }
  flush(shape);
}

// Rotates the chunk's queries for the remote part, and pre-RoPE keys of the local part.
void WindowAttention::rotate_chunk(std::int32_t layer, const WindowRows& rows, const AttentionShape& shape,
                                   Chunk& chunk) {
  const Plan& plan = rows.method->plan();
  const std::int32_t first = rows.first(), end = rows.cache->length();
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads;
  chunk.remote_q = nullptr;
  if (plan.remote_position) {
    chunk.remote_rows.clear();
    for (std::int32_t i = 0; i < rows.n_rows; ++i)
      chunk.remote_rows.push_back({rows.q + i * rows.q_stride, *plan.remote_position - (first + i)});
    chunk.remote_q = chunk.remote.rotate(chunk.remote_rows, n_kv * shape.group, shape.head_dim, context_);
  }
  if (plan.key_basis == KeyBasis::kPostRope) return;
  const std::int32_t from = std::max(0, first - plan.rules.recent + 1), n = end - from;
  if (chunk.local_from != from || chunk.local_end != end) {
    std::vector<std::int32_t> positions;
    for (std::int32_t p = from; p < end; ++p) positions.push_back(p);
    chunk.local_angles.set(positions, rotation_table(rope_), context_);
    chunk.local_from = from;
    chunk.local_end = end;
  }
  const std::size_t head_bytes = n * shape.token_bytes();
  chunk.local.reserve(n_kv * head_bytes);
  const std::int64_t pieces = (n + kRotateGrain - 1) / kRotateGrain;
  context_.pool->parallel_for(n_kv * pieces, 1, [&](std::int64_t begin, std::int64_t last, int) {
    std::vector<KvRun> runs;
    for (; begin < last; ++begin) {
      const std::int32_t head = count32(begin / pieces);
      const std::int32_t at = count32(begin % pieces * kRotateGrain);
      const std::int32_t stop = std::min(n, at + count32(kRotateGrain));
      runs.clear();
      rows.cache->append_runs(layer, head, from + at, from + stop, runs);
      rotate_keys_cpu(runs, shape, chunk.local_angles, at,
                      chunk.local.data() + head * head_bytes + at * shape.token_bytes());
    }
  });
}

// Queries of the window's rows, rotated for the remote part.
ProbeQueries WindowAttention::probe_rows(const Window& w, const AttentionShape& shape) {
  const WindowRows& rows = *w.rows;
  const std::int64_t width = std::int64_t{rows.cache->shape().n_kv_heads} * shape.group * shape.head_dim;
  const bool rotated = w.chunk->remote_q != nullptr;
  const std::int64_t stride = rotated ? width : rows.q_stride;
  return {.q = (rotated ? w.chunk->remote_q : rows.q) + (w.begin - rows.first()) * stride,
          .stride = stride,
          .first = w.begin,
          .n = w.end - w.begin};
}

void WindowAttention::select(std::int32_t layer, const Window& w, const AttentionShape& shape) {
  MethodState& method = *w.rows->method;
  selector_.file_units(method, layer, *w.rows->cache, w.begin + 1);
  const std::span<const float> probe = selector_.probe(method, layer, probe_rows(w, shape));
  std::vector<std::int32_t>& units = method.layer(layer).attended[0];
  units.clear();
  if (w.everything) return;
  // Windows end at multiples of their rows, wherever the chunk begins: each is a slot of its own.
  const std::int32_t n_rows = method.plan().window->rows, slot = w.begin / n_rows - w.rows->first() / n_rows;
  const Region region = region_at(method.plan().rules, w.begin + 1);
  selector_.select(method, layer, region, probe, slot, units);
  const std::int32_t window = w.begin / method.plan().window->rows;
  if (audit_every_ == 0 || window % audit_every_ != 0) return;
  const double rank = selector_.rank_correlation(method, layer, *w.rows->cache, region, probe_rows(w, shape));
  if (std::isnan(rank)) return;
  LayerStats& stats = method.stats().layers[layer];
  stats.audit.rank += rank;
  ++stats.audit.windows;
}

// Adds the rows' attention to their local tokens to the method's state.
void WindowAttention::learn(std::int32_t layer, const Window& w, const AttentionShape& shape) {
  const WindowRows& rows = *w.rows;
  MethodState& method = *rows.method;
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, n = w.end - w.begin;
  const std::int32_t from =
      std::max({0, w.begin - method.plan().rules.recent + 1, method.layer(layer).memory->mass.begin()});
  local_runs_.resize(n_kv);
  local_spans_.clear();
  for (std::int32_t m = 0; m < n_kv; ++m) {
    std::vector<KvRun>& runs = local_runs_[m];
    runs.clear();
    append_local(layer, w, m, from, shape, runs);
    local_spans_.push_back(runs);
  }
  selector_.add_mass(method, layer,
                     {.q = rows.q + (w.begin - rows.first()) * rows.q_stride,
                      .stride = rows.q_stride,
                      .lse = lse_.data(),
                      .lse_rows = n,
                      .first = w.begin,
                      .n = n,
                      .from = from,
                      .runs = local_spans_});
  selector_.see_question(method, layer, probe_rows(w, shape));
}

// Positions [from, end) of the window, as its rows see the local part.
void WindowAttention::append_local(std::int32_t layer, const Window& w, std::int32_t kv_head, std::int32_t from,
                                   const AttentionShape& shape, std::vector<KvRun>& runs) const {
  if (w.rows->cache->key_basis() == KeyBasis::kPostRope) {
    w.rows->cache->append_runs(layer, kv_head, from, w.end, runs);
    return;
  }
  const std::int64_t n = w.chunk->local_end - w.chunk->local_from;
  const std::int64_t token = kv_head * n + from - w.chunk->local_from;
  runs.push_back({w.chunk->local.data() + token * shape.token_bytes(), w.end - from});
}

void WindowAttention::add_part(const float* q, std::int64_t q_stride, std::size_t first_run, bool causal,
                               std::int32_t window) {
  if (runs_.size() == first_run) return;
  parts_.push_back({.q = q, .q_stride = q_stride, .runs = {}, .causal = causal, .window = window});
  part_runs_.push_back({first_run, runs_.size() - first_run});
}

void WindowAttention::add_window(std::int32_t layer, const Window& w, const AttentionShape& shape) {
  const WindowRows& rows = *w.rows;
  const Plan& plan = rows.method->plan();
  const SequenceCache& cache = *rows.cache;
  const bool pre_rope = plan.key_basis == KeyBasis::kPreRope;
  const std::int32_t recent = plan.rules.recent, row = w.begin - rows.first(), base = w.base;
  const std::int32_t local_from = w.slides ? std::max(base, w.begin - recent + 1) : base;
  const std::span<const std::int32_t> units =
      w.everything || !plan.selects() ? std::span<const std::int32_t>() : rows.method->layer(layer).attended[0];
  const std::int64_t width = std::int64_t{cache.shape().n_kv_heads} * shape.group * shape.head_dim;
  for (std::int32_t m = 0; m < cache.shape().n_kv_heads; ++m) {
    const std::int64_t at = std::int64_t{m} * shape.group * shape.head_dim;
    const float* q = rows.q + row * rows.q_stride + at;
    const bool rotated = w.chunk->remote_q != nullptr && (pre_rope || !w.everything);
    const float* remote_q = rotated ? w.chunk->remote_q + row * width + at : q;
    const std::int64_t remote_stride = rotated ? width : rows.q_stride;
    head_parts_.push_back({parts_.size(), 0});
    std::size_t first_run = runs_.size();
    cache.append_runs(layer, m, 0, w.sink, runs_);
    for (std::int32_t u : units)
      cache.append_runs(layer, m, u * plan.rules.unit_tokens, (u + 1) * plan.rules.unit_tokens, runs_);
    add_part(remote_q, remote_stride, first_run, false, 0);
    if (w.slides && w.keeps && w.end - recent > base) {
      first_run = runs_.size();
      cache.append_runs(layer, m, base, w.end - recent, runs_);
      add_part(remote_q, remote_stride, first_run, true, 0);
    }
    first_run = runs_.size();
    append_local(layer, w, m, local_from, shape, runs_);
    add_part(q, rows.q_stride, first_run, true, w.slides ? recent : 0);
    head_parts_.back().count = parts_.size() - head_parts_.back().begin;
    heads_.push_back({.parts = {},
                      .n_rows = w.end - w.begin,
                      .out = rows.out + row_bytes(rows.out_dtype, row * rows.out_stride + at),
                      .out_stride = rows.out_stride,
                      .out_dtype = rows.out_dtype,
                      .lse = lse(m, w, shape),
                      .sinks = rows.sinks == nullptr ? nullptr : rows.sinks + m * shape.group});
  }
  LayerStats& stats = rows.method->stats().layers[layer];
  const std::int64_t n_kv = cache.shape().n_kv_heads, n_rows = w.end - w.begin;
  const std::int64_t local = w.local_tokens(recent);
  const std::int64_t remote = w.sink + std::ssize(units) * plan.rules.unit_tokens;
  stats.prefill_rows += n_kv * n_rows;
  stats.prefill_tokens += n_kv * (n_rows * remote + local);
}

// Destination of the log-sum-exp of a head of the window, if the method uses it.
float* WindowAttention::lse(std::int32_t kv_head, const Window& w, const AttentionShape& shape) {
  const Plan& plan = w.rows->method->plan();
  if (!plan.layer_selection) return nullptr;
  const std::int64_t n = std::int64_t{w.end - w.begin} * shape.group;
  if (kv_head == 0) lse_.resize(n * plan.shape.n_kv_heads);
  return lse_.data() + kv_head * n;
}

void WindowAttention::flush(const AttentionShape& shape) {
  for (std::size_t i = 0; i < parts_.size(); ++i)
    parts_[i].runs = std::span(runs_).subspan(part_runs_[i].begin, part_runs_[i].count);
  for (std::size_t h = 0; h < heads_.size(); ++h)
    heads_[h].parts = std::span(parts_).subspan(head_parts_[h].begin, head_parts_[h].count);
  if (!heads_.empty()) attend_prefill_cpu(heads_, shape, context_);
  runs_.clear();
  parts_.clear();
  part_runs_.clear();
  head_parts_.clear();
  heads_.clear();
}

std::size_t WindowAttention::scratch_bytes() const {
  const auto bytes = [](const auto& v) { return v.capacity() * sizeof(v[0]); };
  std::size_t sum = bytes(runs_) + bytes(parts_) + bytes(part_runs_) + bytes(head_parts_) + bytes(heads_);
  for (const Chunk& c : chunks_) sum += c.remote.scratch_bytes() + bytes(c.remote_rows) + c.local.size();
  return sum;
}

}  // namespace mneme
