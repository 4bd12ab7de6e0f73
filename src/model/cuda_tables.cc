#include "src/model/cuda_tables.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {
namespace {

constexpr std::size_t kStaged = 1 << 17;  // updates under way at once
static_assert(kPageTokens == kKvPageTokens);

}  // namespace

CudaTables::CudaTables(const KvShape& shape, std::byte* blocks, std::int32_t max_sequences, std::int64_t max_context)
    : shape_(shape), places_(static_cast<std::size_t>(max_sequences)) {
  tables_.max_pages = static_cast<std::int32_t>((max_context + kPageTokens - 1) / kPageTokens);
  tables_.sequence_stride = shape.blocks_per_page() * tables_.max_pages;
  entries_ = DeviceBuffer(static_cast<std::size_t>(tables_.sequence_stride) * places_.size() * sizeof(std::int32_t),
                          "tables of keys and values");
  updates_ = DeviceBuffer(kStaged * sizeof(TableUpdate), "tables of keys and values");
  staging_ = PinnedBuffer(kStaged * sizeof(TableUpdate));
  tables_.base = blocks;
  tables_.blocks = entries_.as<std::int32_t>();
  tables_.n_kv_heads = shape.n_kv_heads;
  tables_.head_dim = shape.head_dim;
  tables_.f16 = shape.dtype == DType::kF16;
}

std::int32_t CudaTables::find(std::uint64_t revision) {
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (places_[i].revision == revision) return static_cast<std::int32_t>(i);
  return -1;
}

void CudaTables::flush(const Stream& stream) {
  if (n_staged_ == 0) return;
  copy_bytes(updates_.data(), staging_.data(), n_staged_ * sizeof(TableUpdate), stream);
  update_tables_cuda(tables_.blocks, updates_.as<TableUpdate>(), static_cast<std::int64_t>(n_staged_),
                     {.stream = stream.get()});
  n_staged_ = 0;
}

void CudaTables::add_pages(const SequenceCache& sequence, std::int32_t slot, const Stream& stream) {
  Place& place = places_[static_cast<std::size_t>(slot)];
  const std::int32_t n_pages = sequence.n_pages();
  MNEME_CHECK(n_pages <= tables_.max_pages, "{} pages, tables have room for {}", n_pages, tables_.max_pages);
  if (place.n_pages == n_pages) return;
  auto* staged = staging_.as<TableUpdate>();
  for (std::int32_t layer = 0; layer < shape_.n_layers; ++layer)
    for (std::int32_t head = 0; head < shape_.n_kv_heads; ++head) {
      const std::span<const BlockId> table = sequence.table(layer, head);
      const std::int64_t at =
          slot * tables_.sequence_stride + (std::int64_t{layer} * shape_.n_kv_heads + head) * tables_.max_pages;
      for (std::int32_t page = place.n_pages; page < n_pages; ++page) {
        if (n_staged_ == kStaged) {
          flush(stream);
          stream.synchronize();  // the staging memory is free again
        }
        staged[n_staged_++] = {at + page, table[static_cast<std::size_t>(page)].value};
      }
    }
  place.n_pages = n_pages;
}

void CudaTables::place(std::span<const SequenceCache* const> sequences, const Stream& stream,
                       std::span<std::int32_t> slots) {
  MNEME_CHECK(sequences.size() <= places_.size(), "{} sequences, tables for {}", sequences.size(), places_.size());
  ++steps_;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    slots[i] = find(sequences[i]->revision());
    if (slots[i] >= 0) places_[static_cast<std::size_t>(slots[i])].used_at = steps_;
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (slots[i] < 0) {
      const auto oldest = std::min_element(places_.begin(), places_.end(),
                                           [](const Place& a, const Place& b) { return a.used_at < b.used_at; });
      *oldest = {.revision = sequences[i]->revision(), .n_pages = 0, .used_at = steps_};
      slots[i] = static_cast<std::int32_t>(oldest - places_.begin());
    }
    add_pages(*sequences[i], slots[i], stream);
  }
  flush(stream);
}

}  // namespace mneme
