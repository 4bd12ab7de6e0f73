#include "src/model/cuda_tables.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {
namespace {

constexpr std::size_t kStaged = 1 << 17;  // updates under way at once
static_assert(kPageTokens == kKvPageTokens);

// A bit a slot of each page: whether it holds a token. Behind the last one all are set, so that new tokens need not set
// theirs.
void masks_of(const SequenceCache& sequence, std::int32_t layer, std::int32_t head, std::vector<std::uint32_t>& masks) {
  masks.assign(sequence.table(layer, head).size(), 0);
  const auto set = [&](std::int32_t begin, std::int32_t end) {
    for (std::int32_t at = begin; at < end;) {
      const std::int32_t in_page = at % kPageTokens, n = std::min(kPageTokens - in_page, end - at);
      masks[static_cast<std::size_t>(at / kPageTokens)] |= (~0u >> (kPageTokens - n)) << in_page;
      at += n;
    }
  };
  for (const TokenRange& slots : sequence.stored_slots(layer, head)) set(slots.begin, slots.end);
  set(sequence.n_slots(layer, head), static_cast<std::int32_t>(masks.size()) * kPageTokens);
}

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
  ragged_ = tables_;
}

std::int32_t CudaTables::find(const SequenceCache& sequence) const {
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (places_[i].revision == sequence.revision()) return static_cast<std::int32_t>(i);
  return -1;
}

// For a sequence whose tables are nowhere: the place where it was before it dropped something, or the one that was used
// longest ago.
std::int32_t CudaTables::free_place(const SequenceCache& sequence) const {
  const auto rank = [&](const Place& p) {
    return p.last == &sequence && sequence.dropped() && p.used_at < steps_ ? -1 : p.used_at;
  };
  const auto best = std::min_element(places_.begin(), places_.end(),
                                     [&](const Place& a, const Place& b) { return rank(a) < rank(b); });
  return static_cast<std::int32_t>(best - places_.begin());
}

void CudaTables::flush(const Stream& stream) {
  if (n_staged_ == n_flushed_) return;
  const std::size_t n = n_staged_ - n_flushed_;
  auto* there = updates_.as<TableUpdate>() + n_flushed_;
  copy_bytes(there, staging_.as<TableUpdate>() + n_flushed_, n * sizeof(TableUpdate), stream);
  update_tables_cuda(staged_for_, there, static_cast<std::int64_t>(n), {.stream = stream.get()});
  n_flushed_ = n_staged_;
}

void CudaTables::update(std::int32_t* array, std::int64_t at, std::int64_t value, const Stream& stream) {
  if (array != staged_for_) flush(stream);
  if (n_staged_ == kStaged) {
    flush(stream);
    stream.synchronize();  // the staging memory is free again
    n_staged_ = n_flushed_ = 0;
  }
  staged_for_ = array;
  staging_.as<TableUpdate>()[n_staged_++] = {at, value};
}

void CudaTables::add_pages(const SequenceCache& sequence, std::int32_t slot, const Stream& stream) {
  Place& place = places_[static_cast<std::size_t>(slot)];
  const std::int32_t n_pages = sequence.n_pages();
  MNEME_CHECK(n_pages <= tables_.max_pages, "{} pages, tables have room for {}", n_pages, tables_.max_pages);
  if (place.n_pages == n_pages) return;
  for (std::int32_t layer = 0; layer < shape_.n_layers; ++layer)
    for (std::int32_t head = 0; head < shape_.n_kv_heads; ++head) {
      const std::span<const BlockId> table = sequence.table(layer, head);
      const std::int64_t at =
          slot * tables_.sequence_stride + (std::int64_t{layer} * shape_.n_kv_heads + head) * tables_.max_pages;
      for (std::int32_t page = place.n_pages; page < n_pages; ++page)
        update(tables_.blocks, at + page, table[static_cast<std::size_t>(page)].value, stream);
    }
  place.n_pages = n_pages;
}

// The place's next sequence has dropped nothing.
void CudaTables::forget_drops(std::int32_t slot, const Stream& stream) {
  Place& place = places_[static_cast<std::size_t>(slot)];
  if (place.heads.empty()) return;
  place.heads.clear();
  const auto stride = static_cast<std::size_t>(tables_.sequence_stride) * sizeof(std::int32_t);
  set_bytes(masks_.data() + static_cast<std::size_t>(slot) * stride, 0xff, stride, stream);
  const auto heads = static_cast<std::size_t>(ragged_.shift_stride) * sizeof(std::int32_t);
  set_bytes(shifts_.data() + static_cast<std::size_t>(slot) * heads, 0, heads, stream);
}

void CudaTables::take_masks(const Stream& stream) {
  if (masks_.size() > 0) return;
  masks_ = DeviceBuffer(entries_.size(), "which tokens of keys and values were dropped");
  ragged_.shift_stride = static_cast<std::int32_t>(shape_.blocks_per_page());
  shifts_ = DeviceBuffer(places_.size() * static_cast<std::size_t>(ragged_.shift_stride) * sizeof(std::int32_t),
                         "how many tokens were dropped");
  set_bytes(masks_.data(), 0xff, masks_.size(), stream);
  set_bytes(shifts_.data(), 0, shifts_.size(), stream);
  ragged_.masks = masks_.as<std::uint32_t>();
  ragged_.shifts = shifts_.as<std::int32_t>();
}

void CudaTables::add_ragged(const SequenceCache& sequence, std::int32_t slot, const Stream& stream) {
  take_masks(stream);
  Place& place = places_[static_cast<std::size_t>(slot)];
  const bool changed = place.revision != sequence.revision() || place.heads.empty();
  place.revision = sequence.revision();
  place.n_pages = 0;  // a sequence that dropped nothing has all of its own to write
  place.heads.resize(static_cast<std::size_t>(shape_.blocks_per_page()));
  mask_updates_.clear();
  shift_updates_.clear();
  for (std::int32_t layer = 0; layer < shape_.n_layers; ++layer)
    for (std::int32_t head = 0; head < shape_.n_kv_heads; ++head) {
      const std::int64_t index = std::int64_t{layer} * shape_.n_kv_heads + head,
                         at = slot * tables_.sequence_stride + index * tables_.max_pages;
      HeadPages& there = place.heads[static_cast<std::size_t>(index)];
      const std::span<const BlockId> table = sequence.table(layer, head);
      MNEME_CHECK(std::ssize(table) <= tables_.max_pages, "{} pages, tables have room for {}", table.size(),
                  tables_.max_pages);
      const std::size_t known = changed ? 0 : there.blocks.size();
      there.blocks.resize(table.size(), -1);
      for (std::size_t page = known; page < table.size(); ++page) {
        if (there.blocks[page] == table[page].value) continue;
        there.blocks[page] = table[page].value;
        update(tables_.blocks, at + static_cast<std::int64_t>(page), table[page].value, stream);
      }
      if (!changed) continue;
      add_masks(sequence, layer, head, at, there);
      const std::int32_t shift = sequence.length() - sequence.n_slots(layer, head);
      if (shift != there.shift) shift_updates_.push_back({std::int64_t{slot} * ragged_.shift_stride + index, shift});
      there.shift = shift;
    }
  for (const TableUpdate& u : mask_updates_) update(masks_.as<std::int32_t>(), u.at, u.value, stream);
  for (const TableUpdate& u : shift_updates_) update(shifts_.as<std::int32_t>(), u.at, u.value, stream);
}

// Those that are others than they were; what is behind a head's pages is all ones, as it was at first.
void CudaTables::add_masks(const SequenceCache& sequence, std::int32_t layer, std::int32_t head, std::int64_t at,
                           HeadPages& there) {
  masks_of(sequence, layer, head, masks_now_);
  for (std::size_t page = 0; page < std::max(masks_now_.size(), there.masks.size()); ++page) {
    const std::uint32_t is = page < there.masks.size() ? there.masks[page] : ~0u,
                        wanted = page < masks_now_.size() ? masks_now_[page] : ~0u;
    if (is != wanted) mask_updates_.push_back({at + static_cast<std::int64_t>(page), std::int64_t{wanted}});
  }
  there.masks = masks_now_;
}

void CudaTables::place(std::span<const SequenceCache* const> sequences, const Stream& stream,
                       std::span<std::int32_t> slots) {
  MNEME_CHECK(sequences.size() <= places_.size(), "{} sequences, tables for {}", sequences.size(), places_.size());
  n_staged_ = n_flushed_ = 0;
  ++steps_;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    slots[i] = find(*sequences[i]);
    if (slots[i] >= 0) places_[static_cast<std::size_t>(slots[i])].used_at = steps_;
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const bool ragged = sequences[i]->dropped();
    if (slots[i] < 0) {
      slots[i] = free_place(*sequences[i]);
      Place& place = places_[static_cast<std::size_t>(slots[i])];
      place.used_at = steps_;
      place.last = sequences[i];
      if (!ragged) {
        place.revision = sequences[i]->revision();
        place.n_pages = 0;
      }
    }
    if (ragged) {
      add_ragged(*sequences[i], slots[i], stream);
    } else {
      forget_drops(slots[i], stream);
      add_pages(*sequences[i], slots[i], stream);
    }
  }
  flush(stream);
}

}  // namespace mneme
