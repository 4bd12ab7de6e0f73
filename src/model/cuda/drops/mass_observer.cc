#include "src/model/cuda/drops/mass_observer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

constexpr std::size_t kFewFloats = 1 << 17;  // below, starting threads costs more than it gains
constexpr int kMaxThreads = 16;

void grow_ahead(PinnedBuffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return;
  buffer = {};
  buffer = PinnedBuffer(bytes + bytes / 4);
}

std::int32_t most_slots(const SequenceCache& cache, std::int32_t layer) {
  std::int32_t n = 0;
  for (std::int32_t m = 0; m < cache.shape().n_kv_heads; ++m) n = std::max(n, cache.n_slots(layer, m));
  return n;
}

// Whether all heads have the same table indices.
bool same_slots(const SequenceCache& cache, std::int32_t layer) {
  if (!cache.dropped()) return true;
  const std::vector<TokenRange> first = cache.stored_slots(layer, 0);
  for (std::int32_t m = 1; m < cache.shape().n_kv_heads; ++m)
    if (cache.stored_slots(layer, m) != first) return false;
  return true;
}

std::int32_t slot_of_rank(const SequenceCache& cache, std::int32_t layer, std::int32_t rank) {
  for (const TokenRange& r : cache.stored_slots(layer, 0)) {
    if (rank < r.end - r.begin) return r.begin + rank;
    rank -= r.end - r.begin;
  }
  return cache.n_slots(layer, 0);
}
std::int32_t rank_of_slot(const SequenceCache& cache, std::int32_t layer, std::int32_t slot) {
  std::int32_t rank = 0;
  for (const TokenRange& r : cache.stored_slots(layer, 0)) rank += std::clamp(slot - r.begin, 0, r.end - r.begin);
  return rank;
}

}  // namespace

CudaMassObserver::CudaMassObserver(const KvShape& shape, std::int32_t n_heads, float scale)
    : shape_(shape), n_heads_(n_heads), scale_(scale), drops_(shape), decode_(shape) {
  workers_.resize(1);
}

std::size_t CudaMassObserver::bytes() const {
  std::size_t n = decode_.mass.bytes() + decode_.mass_rows.size() + drops_.bytes();
  for (const DeviceBuffer* b : {&decode_.lse, &q_, &mass_, &lse_, &scratch_, &results_}) n += b->size();
  return n;
}

void CudaMassObserver::clear() {
  chunks_.clear();
  decode_.rows.clear();
  drops_.clear();
  std::fill(decode_.next.begin(), decode_.next.end(), false);
  decode_.tokens = 0;
}

bool CudaMassObserver::add(const Observed& rows) {
  const Plan& plan = rows.method->plan();
  const std::int32_t n = plan.observed_rows;
  if (n == 0 || plan.compressed_layers() == 0) return false;
  if (rows.decodes) {
    // All rows count, decode rows too, although they cause no drop.
    if (!DropDecider::each_step(plan) && n != Plan::kAllRows) return false;
    for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
      if (!plan.compressed(l)) continue;
      decode_.next[static_cast<std::size_t>(l)] = true;
      decode_.tokens = std::max(decode_.tokens, most_slots(*rows.cache, l));
    }
    if (CudaDrops::takes(*rows.method, *rows.cache)) {
      drops_.add(rows.span, *rows.cache, *rows.method);
    } else {
      decode_.rows.push_back(rows);
    }
    return true;
  }
  if (n != Plan::kAllRows && rows.prefill_left >= n) return false;
  Chunk& chunk = chunks_.emplace_back();
  chunk.rows = rows;
  chunk.all_rows = n == Plan::kAllRows;
  chunk.ends = rows.prefill_left == 0;
  chunk.observed = chunk.all_rows ? rows.n_rows : std::min(rows.n_rows, n - rows.prefill_left);
  plan_chunk(chunk);
  return true;
}

// Determines what is copied to the host for each layer.
void CudaMassObserver::plan_chunk(Chunk& chunk) const {
  const SequenceCache& cache = *chunk.rows.cache;
  MethodState& method = *chunk.rows.method;
  const Plan& plan = method.plan();
  chunk.layers.resize(static_cast<std::size_t>(shape_.n_layers));
  for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
    if (!plan.compressed(l)) continue;
    Layer& layer = chunk.layers[static_cast<std::size_t>(l)];
    layer.stride = most_slots(cache, l);
    layer.suffix = chunk.ends && DropDecider::needs_suffix_alone(plan) && same_slots(cache, l);
    layer.mass = chunk.all_rows || (chunk.ends && !layer.suffix && DropDecider::needs_mass(l, cache, plan));
    if (chunk.observed == chunk.rows.n_rows && !chunk.all_rows)
      chunk.earlier = method.layer(l).observed_queries.before(cache.length() - chunk.rows.n_rows);
  }
}

void CudaMassObserver::prepare(std::int32_t n_spans, const Stream& stream) {
  if (decodes()) prepare_decode(n_spans, stream);
  if (!chunks_.empty()) prepare_chunks();
}

void CudaMassObserver::prepare_decode(std::int32_t n_spans, const Stream& stream) {
  const auto spans = static_cast<std::size_t>(n_spans);
  bool moved = decode_.mass.prepare(n_spans + drops_.n_kept_rows(), decode_.tokens, drops_.sums(), stream);
  if (decode_.lse.size() < spans * static_cast<std::size_t>(n_heads_) * sizeof(float)) {
    grow(decode_.lse, spans * static_cast<std::size_t>(n_heads_) * sizeof(float), "sums of attention");
    decode_.mass_rows.grow(spans * sizeof(std::int32_t), "sums of attention");
    moved = true;
  }
  drops_.take_rows({decode_.mass_rows.host.as<std::int32_t>(), spans});
  decode_.mass_rows.send(spans * sizeof(std::int32_t), stream);
  grow_ahead(decode_.host, decode_.rows.size() * static_cast<std::size_t>(shape_.blocks_per_page()) *
                               static_cast<std::size_t>(decode_.tokens) * sizeof(float));
  if (moved || decode_.next != decode_.layers) ++generation_;
  decode_.layers = decode_.next;
}

void CudaMassObserver::start(std::span<const std::int32_t> slots, CudaTables& tables, const Stream& stream) {
  if (drops_.any()) drops_.start(slots, tables, decode_.mass, stream);
}

// One row per query head for the norm rule and for moments, else one per KV head.
std::int32_t CudaMassObserver::rows_of_mass(const Chunk& chunk) const {
  const Plan& plan = chunk.rows.method->plan();
  return plan.norm || DropDecider::needs_moments(plan) ? n_heads_ : shape_.n_kv_heads;
}

// Arrays of mass that go to the host: sums, and with moments squares and entropies.
std::size_t CudaMassObserver::arrays_of_mass(const Chunk& chunk) const {
  return DropDecider::needs_moments(chunk.rows.method->plan()) ? 3 : 1;
}

void CudaMassObserver::prepare_chunks() {
  std::size_t mass = 0, q = 0, lse = 0, scratch = 0, host = chunks_.size() * decode_.layers.size() * sizeof(float);
  for (Chunk& chunk : chunks_) {
    const std::int32_t n_observed = chunk.observed + chunk.earlier;
    for (Layer& layer : chunk.layers) {
      if (layer.stride == 0) continue;
      const std::size_t one =
          static_cast<std::size_t>(rows_of_mass(chunk)) * static_cast<std::size_t>(layer.stride) * sizeof(float);
      layer.rows_at = host;
      if (!chunk.all_rows) host += static_cast<std::size_t>(chunk.ends ? chunk.earlier : chunk.observed) * row_bytes();
      layer.mass_at = host;
      const std::size_t arrays = arrays_of_mass(chunk);
      if (layer.mass) host += arrays * one;
      if (!layer.mass && !layer.suffix) continue;
      layer.begin = Event::make(Event::Timing::kTimed), layer.end = Event::make(Event::Timing::kTimed);
      mass = std::max(mass, arrays == 1 ? one : (arrays + 1) * one);  // behind them the mass of one row
      if (!chunk.all_rows) scratch = std::max(scratch, attention_lse_scratch_bytes(n_observed, n_heads_, layer.stride));
      if (layer.suffix) scratch = std::max(scratch, norm_suffix_scratch_bytes(n_heads_, layer.stride));
    }
    if (chunk.earlier > 0) q = std::max(q, static_cast<std::size_t>(n_observed) * row_bytes());
    lse = std::max(lse, static_cast<std::size_t>(n_observed) * static_cast<std::size_t>(n_heads_) * sizeof(float));
  }
  const char* what = "attention that tokens of a prompt received";
  grow(mass_, mass, what), grow(q_, q, what), grow(lse_, lse, what), grow(scratch_, scratch, what);
  grow(results_, chunks_.size() * decode_.layers.size() * sizeof(std::int32_t), what);
  grow_ahead(host_, host);
  for (const Chunk& chunk : chunks_)
    if (chunk.ends && chunk.earlier > 0) put_earlier_rows(chunk);
}

// Rows of earlier chunks, in the device's query format.
void CudaMassObserver::put_earlier_rows(const Chunk& chunk) const {
  for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
    const Layer& layer = chunk.layers[static_cast<std::size_t>(l)];
    if (layer.stride == 0) continue;
    const MethodState::ObservedQueries& observed_queries = chunk.rows.method->layer(l).observed_queries;
    auto* to = reinterpret_cast<bf16*>(host_.data() + layer.rows_at);
    const std::size_t n = static_cast<std::size_t>(chunk.earlier) * row_bytes() / sizeof(bf16);
    for (std::size_t i = 0; i < n; ++i) to[i] = bf16(observed_queries.q[i]);
  }
}

const CudaMassObserver::Chunk* CudaMassObserver::chunk_of(std::size_t span) const {
  for (const Chunk& chunk : chunks_)
    if (chunk.rows.span == span) return &chunk;
  return nullptr;
}

void CudaMassObserver::take_decoded(std::int32_t layer, const Decoded& rows, const KvTables& pages,
                                    const CudaContext& context) {
  const std::int64_t each = shape_.n_kv_heads * decode_.mass.stride();
  attention_mass_cuda({.q = rows.q,
                       .slots = rows.slots,
                       .lengths = rows.lengths,
                       .lse = decode_lse() + std::int64_t{rows.first} * n_heads_,
                       .mass = decode_.mass.given() + layer * each,
                       .mass_rows = decode_.mass_rows.device.as<std::int32_t>() + rows.first,
                       .mass_stride = decode_.mass.stride(),
                       .sequence_stride = shape_.n_layers * each,
                       .n = rows.n,
                       .n_rows = 1,
                       .n_heads = n_heads_,
                       .max_tokens = static_cast<std::int32_t>(decode_.mass.stride()),
                       .scale = scale_,
                       .by = MassBy::kGroup},
                      pages, layer, context);
}

float* CudaMassObserver::chunk_lse(std::size_t span, std::int32_t layer) const {
  const Chunk* chunk = chunk_of(span);
  if (chunk == nullptr || !chunk->all_rows || chunk->layers[static_cast<std::size_t>(layer)].stride == 0)
    return nullptr;
  return lse_.as<float>();
}

void CudaMassObserver::take_chunk(std::size_t span, std::int32_t layer, const Prompt& rows, const KvTables& pages,
                                  std::int32_t pages_layer, const Stream& stream) {
  const Chunk* chunk = chunk_of(span);
  if (chunk == nullptr) return;
  const Layer& l = chunk->layers[static_cast<std::size_t>(layer)];
  if (l.stride == 0) return;
  const std::size_t observed = static_cast<std::size_t>(chunk->observed) * row_bytes(),
                    earlier = static_cast<std::size_t>(chunk->earlier) * row_bytes();
  const auto* q = static_cast<const std::byte*>(rows.q) +
                  static_cast<std::size_t>(chunk->rows.n_rows - chunk->observed) * row_bytes();
  if (!chunk->all_rows && !chunk->ends) return copy_bytes(host_.data() + l.rows_at, q, observed, stream);
  if (!l.mass && !l.suffix) return;
  l.begin.record(stream);
  if (chunk->earlier > 0) {
    copy_bytes(q_.data(), host_.data() + l.rows_at, earlier, stream);
    copy_bytes(q_.data() + earlier, q, observed, stream);
    q = q_.data();
  }
  measure(*chunk, layer, q, rows, pages, pages_layer, stream);
  l.end.record(stream);
}

// Row by row. Tokens behind a row receive mass too; they are in the window, which stays unseen.
void CudaMassObserver::measure_moments(AttentionMassCuda a, const KvTables& pages, std::int32_t pages_layer,
                                       const Stream& stream) const {
  const CudaContext context{.stream = stream.get()};
  const std::int64_t n = std::int64_t{n_heads_} * a.mass_stride;
  float* const sums = mass_.as<float>();
  set_bytes(mass_.data(), 0, static_cast<std::size_t>(3 * n) * sizeof(float), stream);
  const auto* q = static_cast<const std::byte*>(a.q);
  a.mass = sums + 3 * n;
  for (std::int32_t rows = std::exchange(a.n_rows, 1); rows > 0; --rows) {
    a.q = q;
    attention_mass_cuda(a, pages, pages_layer, context);
    add_moments_cuda(a.mass, n, sums, sums + n, sums + 2 * n, context);
    q += row_bytes();
    a.lse += n_heads_;
  }
}

void CudaMassObserver::measure(const Chunk& chunk, std::int32_t layer, const void* q, const Prompt& rows,
                               const KvTables& pages, std::int32_t pages_layer, const Stream& stream) const {
  const Layer& l = chunk.layers[static_cast<std::size_t>(layer)];
  const CudaContext context{.stream = stream.get(), .order = LaunchOrder::kOverlapped};
  AttentionMassCuda a{.q = q,
                      .slots = rows.slot,
                      .lengths = rows.length,
                      .lse = lse_.as<float>(),
                      .mass = mass_.as<float>(),
                      .mass_stride = l.stride,
                      .sequence_stride = 0,
                      .n = 1,
                      .n_rows = chunk.observed + chunk.earlier,
                      .n_heads = n_heads_,
                      .max_tokens = l.stride,
                      .scale = scale_,
                      .by = rows_of_mass(chunk) == n_heads_ ? MassBy::kQueryHead : MassBy::kGroup};
  if (l.suffix) a.scores = mass_.as<float>();
  if (!chunk.all_rows) attention_lse_cuda(a, pages, pages_layer, scratch_.data(), context);
  if (l.mass) {
    const auto n = static_cast<std::size_t>(rows_of_mass(chunk)) * static_cast<std::size_t>(l.stride);
    if (arrays_of_mass(chunk) == 1) {
      attention_mass_cuda(a, pages, pages_layer, context);
    } else {
      measure_moments(a, pages, pages_layer, stream);
    }
    return copy_bytes(host_.data() + l.mass_at, mass_.data(), arrays_of_mass(chunk) * n * sizeof(float), stream);
  }
  const SequenceCache& cache = *chunk.rows.cache;
  const NormRule rule = DropDecider::norm_rule(layer, cache, chunk.rows.method->plan());
  norm_suffix_cuda({.mass = mass_.as<float>(),
                    .lse = lse_.as<float>(),
                    .stride = l.stride,
                    .n_heads = n_heads_,
                    .n = l.stride,
                    .loss = rule.loss,
                    .sink = slot_of_rank(cache, layer, rule.sink),
                    .sink_in_norm = rule.sink_in_norm,
                    .result = results_.as<std::int32_t>() + (&chunk - chunks_.data()) * shape_.n_layers + layer,
                    .scratch = scratch_.data()},
                   context);
}

void CudaMassObserver::fetch(const Stream& stream) {
  if (!chunks_.empty())
    copy_bytes(host_.data(), results_.data(), chunks_.size() * decode_.layers.size() * sizeof(std::int32_t), stream);
  const auto rows = static_cast<std::size_t>(shape_.blocks_per_page()),
             width = static_cast<std::size_t>(decode_.tokens) * sizeof(float);
  for (std::size_t i = 0; i < decode_.rows.size(); ++i)
    copy_rows(decode_.host.data() + i * rows * width, width,
              decode_.mass.given() +
                  decode_.mass_rows.host.as<std::int32_t>()[decode_.rows[i].span] * decode_.mass.row_floats(),
              static_cast<std::size_t>(decode_.mass.stride()) * sizeof(float), width, rows, stream);
}

namespace {

// Row h: mass of head h, by rank.
void by_rank(const SequenceCache& cache, std::int32_t layer, const float* by_slot, std::int64_t stride,
             std::int32_t n_rows, LayerMass& mass) {
  const std::int32_t n_kv = cache.shape().n_kv_heads, each = n_rows / n_kv;
  mass.clear();
  mass.by = each == 1 ? LayerMass::By::kKvHead : LayerMass::By::kQueryHead;
  for (std::int32_t h = 0; h < n_rows; ++h) {
    mass.add_row(static_cast<std::size_t>(cache.n_stored(layer, h / each)));
    float* to = mass.row(h).data();
    for (const TokenRange& r : cache.stored_slots(layer, h / each))
      to = std::copy(by_slot + h * stride + r.begin, by_slot + h * stride + r.end, to);
  }
}

struct MomentShape {
  std::int64_t stride = 0;
  std::int32_t n = 0;
  std::int32_t recent = 0;  // last tokens, whose entropy is not counted
};

// Squares and entropy, behind the sums of `by_slot`.
void take_moments(const SequenceCache& cache, std::int32_t layer, const float* by_slot, const MomentShape& rows,
                  LayerMass& mass) {
  LayerMass other;
  by_rank(cache, layer, by_slot + rows.n * rows.stride, rows.stride, rows.n, other);
  mass.squares = std::move(other.values);
  by_rank(cache, layer, by_slot + 2 * rows.n * rows.stride, rows.stride, rows.n, other);
  for (std::int32_t h = 0; h < rows.n; ++h) {
    const std::span<const float> head = other.row(h);
    const std::size_t n = head.size() - std::min(head.size(), static_cast<std::size_t>(rows.recent));
    for (const float x : head.first(n)) mass.entropy += static_cast<double>(x);
  }
}

// Adds these rows' share to every head's mass.
void add_received(MethodState::Layer& state, const LayerMass& given, std::int32_t n_rows) {
  state.pending.mass.resize(given.length.size());
  for (std::size_t h = 0; h < given.length.size(); ++h) {
    std::vector<float>& mass = state.pending.mass[h];
    const std::size_t n = given.length[h], before = n - static_cast<std::size_t>(n_rows);
    // Tokens stored before the method was attached have received no mass.
    mass.assign(n, 0.0f);
    std::copy_n(state.mass[h].begin(), std::min(before, state.mass[h].size()), mass.begin());
    for (std::size_t t = 0; t < n; ++t) mass[t] += given.values[given.first[h] + t];
  }
}

}  // namespace

void CudaMassObserver::save_rows(const Chunk& chunk, std::int32_t layer) const {
  const Layer& l = chunk.layers[static_cast<std::size_t>(layer)];
  MethodState::ObservedQueries& observed_queries = chunk.rows.method->layer(layer).observed_queries;
  const std::size_t width = row_bytes() / sizeof(bf16);
  observed_queries.n = chunk.earlier;
  observed_queries.lse.clear();
  observed_queries.q.resize(static_cast<std::size_t>(observed_queries.n + chunk.observed) * width);
  const auto* from = reinterpret_cast<const bf16*>(host_.data() + l.rows_at);
  for (std::size_t i = 0; i < static_cast<std::size_t>(chunk.observed) * width; ++i)
    observed_queries.q[static_cast<std::size_t>(observed_queries.n) * width + i] = static_cast<float>(from[i]);
  observed_queries.n += chunk.observed;
  observed_queries.end = chunk.rows.cache->length();
}

void CudaMassObserver::decide_chunk(const Job& job, Worker& worker) const {
  const Chunk& chunk = *job.chunk;
  const Layer& l = chunk.layers[static_cast<std::size_t>(job.layer)];
  const SequenceCache& cache = *chunk.rows.cache;
  worker.mass.clear();
  if (l.mass) {
    const std::int32_t n_rows = rows_of_mass(chunk);
    const auto* by_slot = reinterpret_cast<const float*>(host_.data() + l.mass_at);
    by_rank(cache, job.layer, by_slot, l.stride, n_rows, worker.mass);
    if (arrays_of_mass(chunk) > 1)
      take_moments(cache, job.layer, by_slot, {l.stride, n_rows, chunk.rows.method->plan().drop->recent}, worker.mass);
  }
  if (chunk.all_rows) {
    add_received(chunk.rows.method->layer(job.layer), worker.mass, chunk.rows.n_rows);
  } else if (!chunk.ends) {
    save_rows(chunk, job.layer);
  }
  if (!chunk.ends) return;
  DropQueries rows{.cache = &cache,
                   .method = chunk.rows.method,
                   .decodes = false,
                   .observed = chunk.observed + chunk.earlier,
                   .suffix = {}};
  if (l.suffix) {
    const auto* results = host_.as<std::int32_t>() + (&chunk - chunks_.data()) * shape_.n_layers;
    rows.suffix = rank_of_slot(cache, job.layer, results[job.layer]);
  }
  worker.decider.decide(job.layer, rows, worker.mass);
}

void CudaMassObserver::decide_decoded(std::size_t row, std::int32_t layer, Worker& worker) const {
  const Observed& rows = decode_.rows[row];
  const std::int64_t each = std::int64_t{shape_.n_kv_heads} * decode_.tokens;
  const float* given = decode_.host.as<float>() + (static_cast<std::int64_t>(row) * shape_.n_layers + layer) * each;
  by_rank(*rows.cache, layer, given, decode_.tokens, shape_.n_kv_heads, worker.mass);
  if (rows.method->plan().observed_rows == Plan::kAllRows)
    add_received(rows.method->layer(layer), worker.mass, rows.n_rows);
  if (!DropDecider::each_step(rows.method->plan())) return;
  worker.decider.decide(
      layer, {.cache = rows.cache, .method = rows.method, .decodes = true, .observed = 1, .suffix = {}}, worker.mass);
}

// Calls f(job, worker) for all jobs, with threads if there is enough work.
template <typename F>
void CudaMassObserver::for_each_job(std::size_t n, std::size_t floats, F&& f) {
  if (floats <= kFewFloats) {
    for (std::size_t i = 0; i < n; ++i) f(i, workers_[0]);
    return;
  }
  if (!threads_) threads_ = std::make_unique<ThreadPool>(std::min(available_cpus(), kMaxThreads));
  workers_.resize(static_cast<std::size_t>(threads_->size()));
  threads_->parallel_for(static_cast<std::int64_t>(n), 1, [&](std::int64_t begin, std::int64_t end, int worker) {
    for (std::int64_t i = begin; i < end; ++i)
      f(static_cast<std::size_t>(i), workers_[static_cast<std::size_t>(worker)]);
  });
}

void CudaMassObserver::decide() {
  if (!chunks_.empty()) decide_chunks();
  if (decode_.rows.empty()) return;
  std::vector<std::pair<std::size_t, std::int32_t>> jobs;
  for (std::size_t i = 0; i < decode_.rows.size(); ++i)
    for (std::int32_t l = 0; l < shape_.n_layers; ++l)
      if (decode_.rows[i].method->plan().compressed(l)) jobs.push_back({i, l});
  const std::size_t each = static_cast<std::size_t>(shape_.n_kv_heads) * static_cast<std::size_t>(decode_.tokens);
  for_each_job(jobs.size(), jobs.size() * each,
               [&](std::size_t i, Worker& worker) { decide_decoded(jobs[i].first, jobs[i].second, worker); });
}

void CudaMassObserver::decide_chunks() {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Job> jobs;
  std::size_t floats = 0;
  bool in_order = false;  // layers decide together
  for (Chunk& chunk : chunks_) {
    in_order = in_order || DropDecider::by_all_layers(chunk.rows.method->plan());
    for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
      const Layer& layer = chunk.layers[static_cast<std::size_t>(l)];
      if (layer.stride == 0) continue;
      jobs.push_back({&chunk, l});
      if (layer.mass) floats += static_cast<std::size_t>(rows_of_mass(chunk)) * static_cast<std::size_t>(layer.stride);
    }
  }
  for_each_job(jobs.size(), in_order ? 0 : floats,
               [&](std::size_t i, Worker& worker) { decide_chunk(jobs[i], worker); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const Chunk& chunk : chunks_) {
    double& total = chunk.rows.method->stats().prefill_end_seconds;
    total += seconds / static_cast<double>(chunks_.size());
    for (const Layer& layer : chunk.layers)
      if (layer.mass || layer.suffix) total += layer.end.seconds_since(layer.begin);
  }
}

}  // namespace mneme
