#include "src/model/cuda/audit.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "src/base/check.h"
#include "src/ops/attention/attention_cuda.h"
#include "src/selection/mass/attention_mass_cuda.h"

namespace mneme {
namespace {

void grow(PinnedBuffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return;
  buffer = {};
  buffer = PinnedBuffer(bytes);
}
constexpr const char* kWhat = "an audit's attention";
constexpr std::int32_t kNumbers = 3;  // slot, tokens, first token

// Pages of a head by block.
std::unordered_map<std::int32_t, std::int32_t> pages_by_block(const SequenceCache& cache, std::int32_t layer,
                                                              std::int32_t kv_head) {
  std::unordered_map<std::int32_t, std::int32_t> pages;
  const std::span<const BlockId> table = cache.table(layer, kv_head);
  for (std::size_t i = 0; i < table.size(); ++i) pages[table[i].value] = static_cast<std::int32_t>(i);
  return pages;
}

}  // namespace

CudaAudit::CudaAudit(const KvShape& shape, std::int32_t n_heads, float scale, std::int32_t every)
    : shape_(shape), n_heads_(n_heads), scale_(scale), every_(every) {}

std::size_t CudaAudit::bytes() const {
  std::size_t n = one_.numbers.size() + one_.ring_blocks.size();
  for (const DeviceBuffer* b : {&queries_, &one_.out, &one_.lse, &one_.mass, &one_.scratch}) n += b->size();
  return n;
}

void CudaAudit::add(const Audited& row) {
  const MethodState& method = *row.method.method;
  if (every_ <= 0 || method.decode_steps() % static_cast<std::uint32_t>(every_) != 0) return;
  bool sparse = false;
  for (std::int32_t l = 0; l < shape_.n_layers; ++l)
    sparse = sparse || (!method.plan().dense_layer(l) && row.method.cache->length() > method.rules(l).budget);
  if (sparse) rows_.push_back(row);
}

void CudaAudit::prepare(const CudaRetrieval& retrieval) {
  if (rows_.empty()) return;
  const DeviceCache& cache = retrieval.device_cache();
  max_listed_ = cache.max_listed, n_slots_ = cache.n_slots, slot_heads_ = cache.n_kv_heads;
  const auto heads = static_cast<std::size_t>(cache.n_kv_heads), n_heads = static_cast<std::size_t>(n_heads_),
             items = rows_.size() * static_cast<std::size_t>(shape_.n_layers);
  const std::int64_t weights = retrieval.any(asks::prunes) ? retrieval.weights().stride : 0;
  copy_bytes_ = q_bytes() + (heads * static_cast<std::size_t>(max_listed_ + n_slots_ + weights) + 1) * 4;
  copy_bytes_ = (copy_bytes_ + 15) / 16 * 16;
  grow(copies_, items * copy_bytes_);
  grow(queries_, items * 2 * q_bytes(), kWhat);
  std::int32_t tokens = 0;
  for (const Audited& r : rows_) tokens = std::max(tokens, r.method.cache->length());
  if (tokens > one_.stride) {
    constexpr std::int32_t kStep = 1024;
    one_.stride = (tokens + tokens / 4) / kStep * kStep + kStep;
    grow(one_.mass, n_heads * static_cast<std::size_t>(one_.stride) * sizeof(float), kWhat);
    grow(one_.host_mass, 2 * n_heads * static_cast<std::size_t>(one_.stride) * sizeof(float));
  }
  one_.numbers.grow(kNumbers * sizeof(std::int32_t), kWhat);
  grow(one_.out, q_bytes(), kWhat), grow(one_.host_out, 2 * q_bytes());
  grow(one_.lse, n_heads * sizeof(float), kWhat), grow(one_.host_lse, 2 * n_heads * sizeof(float));
  const std::size_t ring = heads * static_cast<std::size_t>(retrieval.needs().ring_pages) * sizeof(std::int32_t);
  if (ring > 0) one_.ring_blocks.grow(ring, kWhat);
}

CudaAudit::Copies CudaAudit::copies_of(std::size_t row, std::int32_t layer) const {
  std::byte* at = copies_.data() +
                  (row * static_cast<std::size_t>(shape_.n_layers) + static_cast<std::size_t>(layer)) * copy_bytes_;
  auto* listed = reinterpret_cast<std::int32_t*>(at + q_bytes());
  std::int32_t* unit_of = listed + std::int64_t{slot_heads_} * max_listed_;
  std::int32_t* remote_to = unit_of + std::int64_t{slot_heads_} * n_slots_;
  return {reinterpret_cast<bf16*>(at), listed, unit_of, remote_to, reinterpret_cast<float*>(remote_to + 1)};
}

std::byte* CudaAudit::query(std::size_t row, std::int32_t layer, bool remote) const {
  const std::size_t item = row * static_cast<std::size_t>(shape_.n_layers) + static_cast<std::size_t>(layer);
  return queries_.data() + (2 * item + (remote ? 1 : 0)) * q_bytes();
}

void CudaAudit::take(std::int32_t layer, std::int32_t first, std::int32_t n, const Attended& a,
                     const CudaRetrieval& retrieval, const Stream& stream) {
  const DeviceCache& cache = retrieval.device_cache();
  const auto heads = static_cast<std::size_t>(slot_heads_);
  const auto copy = [&](void* to, const void* from, std::size_t bytes) { copy_bytes(to, from, bytes, stream); };
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const std::int32_t row = rows_[i].row;
    if (row < first || row >= first + n) continue;
    const std::size_t at = static_cast<std::size_t>(row) * q_bytes();
    const std::int64_t state = std::int64_t{retrieval.slot_layer(layer)} * cache.n_seq_slots + rows_[i].method.seq_slot;
    const Copies c = copies_of(i, layer);
    copy(query(i, layer, false), a.q + at, q_bytes());
    if (retrieval.pre_rope_keys()) copy(query(i, layer, true), a.remote_q + at, q_bytes());
    copy(c.out, a.out + at, q_bytes());
    copy(c.listed, cache.slots.listed + state * slot_heads_ * max_listed_,
         heads * static_cast<std::size_t>(max_listed_) * 4);
    if (n_slots_ > 0)
      copy(c.unit_of, cache.slots.unit_of + state * slot_heads_ * n_slots_,
           heads * static_cast<std::size_t>(n_slots_) * 4);
    copy(c.remote_to, a.remote_to + row, sizeof(std::int32_t));
    if (!retrieval.any(asks::prunes)) continue;
    const CudaRetrieval::Weights weights = retrieval.weights();
    const std::int64_t floats = slot_heads_ * weights.stride;
    copy(c.log_weights, weights.log_weights + (row - first) * floats, static_cast<std::size_t>(floats) * sizeof(float));
  }
}

// Fills one_.attended for a KV head; returns the number of tokens.
std::int64_t CudaAudit::mark(const Audited& row, std::int32_t layer, std::int32_t kv_head, const Copies& c,
                             const CudaRetrieval& retrieval) {
  const DeviceCache& cache = retrieval.device_cache();
  const SelectionPlan& plan = retrieval.at(row.method.seq_slot, layer).plan;
  const std::int32_t n = row.method.cache->length(), unit = cache.unit_tokens, stop = (n + unit - 1) / unit,
                     sinks = plan.region.sink / unit,
                     window =
                         unit == 1 ? std::max(plan.region.recent, plan.units.entry_tokens) : plan.region.recent / unit;
  const std::int64_t index =
      (std::int64_t{retrieval.slot_layer(layer)} * cache.n_seq_slots + row.method.seq_slot) * slot_heads_ + kv_head;
  const auto pages = n_slots_ > 0 ? std::unordered_map<std::int32_t, std::int32_t>()
                                  : pages_by_block(*row.method.cache, layer, kv_head / cache.shared);
  const auto unit_at = [&](std::int32_t entry) {
    if (n_slots_ == 0) {
      const std::int32_t each = kPageTokens / unit;  // entries per block
      const auto page = pages.find(entry / each);
      return page == pages.end() ? -1 : page->second * each + entry % each;
    }
    const std::int64_t slot = (entry & ~kInFlight) - index * n_slots_;  // recalls in flight have completed
    if (slot < 0 || slot >= n_slots_) return -1;
    if (slot < sinks) return static_cast<std::int32_t>(slot);
    if (slot >= sinks + window) return c.unit_of[std::int64_t{kv_head} * n_slots_ + slot];
    return stop - 1 - (stop - 1 - static_cast<std::int32_t>(slot - sinks)) % window;  // the last unit with this slot
  };
  one_.attended.assign(static_cast<std::size_t>(n), 0);
  // With two-part attention the list is the remote part.
  const bool parts = retrieval.two_parts();
  const std::int32_t n_listed = parts ? *c.remote_to : retrieval.at(row.method.seq_slot, layer).attended;
  const std::int32_t* listed = c.listed + std::int64_t{kv_head} * max_listed_;
  const float* weights =
      retrieval.any(asks::prunes) ? c.log_weights + std::int64_t{kv_head} * retrieval.weights().stride : nullptr;
  MNEME_CHECK(n_listed <= max_listed_ * unit, "{} tokens in a list of {} units of {}", n_listed, max_listed_, unit);
  for (std::int32_t at = 0, i = 0; at < n_listed; at += unit, ++i) {
    const std::int32_t u = unit_at(listed[i]), take = std::min(unit, n_listed - at);
    MNEME_CHECK(u >= 0 && u * unit + take <= n,
                "entry {} of {} tokens that layer {}, KV head {} attends of {} is {}, unit {} of {} tokens ({} slots)",
                i, n_listed, layer, kv_head, n, listed[i], u, unit, n_slots_);
    for (std::int32_t t = 0; t < take; ++t)
      one_.attended[static_cast<std::size_t>(u * unit + t)] = weights == nullptr || weights[at + t] == 0 ? 1 : 0;
  }
  if (parts)
    std::fill(one_.attended.begin() + region_at(row.method.method->plan().rules, n).recent_from, one_.attended.end(),
              std::uint8_t{1});
  return std::count(one_.attended.begin(), one_.attended.end(), std::uint8_t{1});
}

// The ring of rotated keys as a table that starts with its first page.
CudaAudit::Part CudaAudit::local_part(const Audited& row, std::int32_t layer, const CudaRetrieval& retrieval,
                                      const Stream& stream) {
  const KeyRing ring = retrieval.local(layer, nullptr);
  const std::int32_t n = row.method.cache->length(), from = std::max(0, n - row.method.method->plan().rules.recent),
                     first = from / kPageTokens;
  Part part{.tables = ring.tables,
            .begin = from - first * kPageTokens,
            .end = n - first * kPageTokens,
            .position = first * kPageTokens};
  part.tables.blocks = one_.ring_blocks.device.as<std::int32_t>();
  part.tables.sequence_stride = std::int64_t{shape_.n_kv_heads} * ring.pages;
  auto* blocks = one_.ring_blocks.host.as<std::int32_t>();
  for (std::int32_t head = 0; head < shape_.n_kv_heads; ++head) {
    // The ring's own table: block i is entry i.
    const std::int64_t base = row.method.seq_slot * ring.tables.sequence_stride +
                              (std::int64_t{ring.layer} * shape_.n_kv_heads + head) * ring.pages;
    for (std::int32_t i = 0; i < ring.pages; ++i)
      blocks[head * ring.pages + i] = static_cast<std::int32_t>(base + (first + i) % ring.pages);
  }
  one_.ring_blocks.send(static_cast<std::size_t>(shape_.n_kv_heads * ring.pages) * sizeof(std::int32_t), stream);
  return part;
}

// Full attention over a part, and each token's share of it. Waits for the stream.
void CudaAudit::measure_part(const Part& part, std::size_t number, const Stream& stream) {
  const CudaContext context{.stream = stream.get()};
  if (one_.scratch.size() == 0) {
    one_.scratch = DeviceBuffer(decode_attention_scratch_bytes(1, shape_.n_kv_heads, shape_.head_dim), kWhat);
    set_bytes(one_.scratch.data(), 0, one_.scratch.size(), stream);
  }
  auto* numbers = one_.numbers.host.as<std::int32_t>();
  numbers[0] = part.slot, numbers[1] = part.end, numbers[2] = part.begin;
  one_.numbers.send(kNumbers * sizeof(std::int32_t), stream);
  const auto* there = one_.numbers.device.as<std::int32_t>();
  attend_decode_cuda({.q = part.q,
                      .slots = there,
                      .lengths = there + 1,
                      .begins = there + 2,
                      .out = one_.out.data(),
                      .lse = one_.lse.as<float>(),
                      .n = 1,
                      .n_heads = n_heads_,
                      .scale = scale_,
                      .scratch = one_.scratch.data()},
                     part.tables, part.layer, context);
  attention_mass_cuda({.q = part.q,
                       .slots = there,
                       .lengths = there + 1,
                       .lse = one_.lse.as<float>(),
                       .mass = one_.mass.as<float>(),
                       .mass_stride = one_.stride,
                       .n = 1,
                       .n_rows = 1,
                       .n_heads = n_heads_,
                       .max_tokens = part.end,
                       .scale = scale_,
                       .by = MassBy::kQueryHead},
                      part.tables, part.layer, context);
  const auto heads = static_cast<std::size_t>(n_heads_), floats = heads * static_cast<std::size_t>(one_.stride);
  copy_bytes(one_.host_out.data() + number * q_bytes(), one_.out.data(), q_bytes(), stream);
  copy_bytes(one_.host_lse.as<float>() + number * heads, one_.lse.data(), heads * sizeof(float), stream);
  copy_bytes(one_.host_mass.as<float>() + number * floats, one_.mass.data(), floats * sizeof(float), stream);
  stream.synchronize();
}

// one_.probabilities and one_.truth of a row over its parts.
void CudaAudit::measure(std::span<const Part> parts, std::int32_t n_tokens, const Stream& stream) {
  for (std::size_t i = 0; i < parts.size(); ++i) measure_part(parts[i], i, stream);
  const auto heads = static_cast<std::size_t>(n_heads_), d = static_cast<std::size_t>(shape_.head_dim),
             n = static_cast<std::size_t>(n_tokens), stride = static_cast<std::size_t>(one_.stride);
  one_.probabilities.assign(heads * n, 0);
  one_.truth.assign(heads * d, 0);
  for (std::size_t h = 0; h < heads; ++h) {
    const auto lse = [&](std::size_t i) { return static_cast<double>(one_.host_lse.as<float>()[i * heads + h]); };
    double most = lse(0), sum = 0;
    for (std::size_t i = 1; i < parts.size(); ++i) most = std::max(most, lse(i));
    for (std::size_t i = 0; i < parts.size(); ++i) sum += std::exp(lse(i) - most);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      const double share = parts.size() == 1 ? 1 : std::exp(lse(i) - most) / sum;
      const bf16* out = reinterpret_cast<const bf16*>(one_.host_out.data() + i * q_bytes()) + h * d;
      for (std::size_t c = 0; c < d; ++c)
        one_.truth[h * d + c] += share * static_cast<double>(static_cast<float>(out[c]));
      const float* mass = one_.host_mass.as<float>() + (i * heads + h) * stride;
      for (std::int32_t t = part.begin; t < part.end; ++t)
        one_.probabilities[h * n + static_cast<std::size_t>(part.position + t)] =
            static_cast<float>(share * static_cast<double>(mass[t]));
    }
  }
}

void CudaAudit::count_layer(std::size_t r, std::int32_t layer, const KvTables& pages, const CudaRetrieval& retrieval,
                            const Stream& stream) {
  const Audited& row = rows_[r];
  const std::int32_t n = row.method.cache->length(), group = n_heads_ / slot_heads_;
  Part parts[2] = {
      {.q = query(r, layer, false), .tables = pages, .layer = layer, .slot = row.method.seq_slot, .end = n}};
  std::size_t n_parts = 1;
  if (retrieval.pre_rope_keys()) {  // with remapped positions, the truth is all tokens at those positions
    parts[1] = local_part(row, layer, retrieval, stream);
    parts[1].q = query(r, layer, false);
    parts[0].q = query(r, layer, true);
    parts[0].end = parts[1].position + parts[1].begin;
    n_parts = 2;
  }
  measure(std::span(parts).first(n_parts), n, stream);
  const Copies c = copies_of(r, layer);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < one_.truth.size(); ++i) {
    difference += std::pow(static_cast<double>(static_cast<float>(c.out[i])) - one_.truth[i], 2);
    norm += std::pow(one_.truth[i], 2);
  }
  LayerStats& stats = row.method.method->stats().layers[static_cast<std::size_t>(layer)];
  const std::size_t each = static_cast<std::size_t>(group) * static_cast<std::size_t>(n);
  for (std::int32_t m = 0; m < slot_heads_; ++m) {
    const std::int64_t attended = mark(row, layer, m, c, retrieval);
    const AuditedHead head = audit_head(std::span(one_.probabilities).subspan(static_cast<std::size_t>(m) * each, each),
                                        group, one_.attended, attended, one_.counting);
    stats.audit.recall += head.recall;
    stats.audit.mass += head.mass;
  }
  stats.audit.samples += slot_heads_;
  stats.audit.error += slot_heads_ * std::sqrt(difference / std::max(norm, 1e-30));
}

void CudaAudit::count(const KvTables& pages, const CudaRetrieval& retrieval, const Stream& stream) {
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::int32_t l = 0; l < shape_.n_layers; ++l)
      if (retrieval.slot_layer(l) >= 0 && !retrieval.at(rows_[r].method.seq_slot, l).everything)
        count_layer(r, l, pages, retrieval, stream);
}

}  // namespace mneme
