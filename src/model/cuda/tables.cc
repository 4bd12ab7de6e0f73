#include "src/model/cuda/tables.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {
namespace {

constexpr std::size_t kStaged = 1 << 17;  // updates in flight
static_assert(kPageTokens == kKvPageTokens);

// One bit per token of each page: set if the token is stored. Bits after the last token are set, so that new tokens
// need no update.
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
    : shape_(shape), seq_slots_(static_cast<std::size_t>(max_sequences)) {
  tables_.max_pages = static_cast<std::int32_t>((max_context + kPageTokens - 1) / kPageTokens);
  tables_.sequence_stride = shape.blocks_per_page() * tables_.max_pages;
  entries_ = DeviceBuffer(static_cast<std::size_t>(tables_.sequence_stride) * seq_slots_.size() * sizeof(std::int32_t),
                          "tables of keys and values");
  updates_ = DeviceBuffer(kStaged * sizeof(TableUpdate), "tables of keys and values");
  staging_ = PinnedBuffer(kStaged * sizeof(TableUpdate));
  tables_.base = blocks;
  tables_.blocks = entries_.as<std::int32_t>();
  tables_.n_kv_heads = shape.n_kv_heads;
  tables_.head_dim = shape.head_dim;
  tables_.f16 = shape.dtype == DType::kF16;
  tables_.codes = kv_codes_of(shape.dtype);
  ragged_ = tables_;
}

std::int32_t CudaTables::find(const SequenceCache& sequence) const {
  for (std::size_t i = 0; i < seq_slots_.size(); ++i)
    if (seq_slots_[i].revision == sequence.revision()) return static_cast<std::int32_t>(i);
  return -1;
}

// For a sequence without tables: the slot that it had before it dropped tokens, or the least recently used one.
std::int32_t CudaTables::free_seq_slot(const SequenceCache& sequence) const {
  const auto rank = [&](const SeqSlot& p) {
    return p.last == &sequence && sequence.dropped() && p.last_used < steps_ ? -1 : p.last_used;
  };
  const auto best = std::min_element(seq_slots_.begin(), seq_slots_.end(),
                                     [&](const SeqSlot& a, const SeqSlot& b) { return rank(a) < rank(b); });
  return static_cast<std::int32_t>(best - seq_slots_.begin());
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
  SeqSlot& seq_slot = seq_slots_[static_cast<std::size_t>(slot)];
  const std::int32_t n_pages = sequence.n_pages();
  MNEME_CHECK(n_pages <= tables_.max_pages, "{} pages, tables have room for {}", n_pages, tables_.max_pages);
  if (seq_slot.n_pages == n_pages) return;
  for (std::int32_t layer = 0; layer < shape_.n_layers; ++layer)
    for (std::int32_t head = 0; head < shape_.n_kv_heads; ++head) {
      const std::span<const BlockId> table = sequence.table(layer, head);
      const std::int64_t at =
          slot * tables_.sequence_stride + (std::int64_t{layer} * shape_.n_kv_heads + head) * tables_.max_pages;
      for (std::int32_t page = seq_slot.n_pages; page < n_pages; ++page)
        update(tables_.blocks, at + page, table[static_cast<std::size_t>(page)].value, stream);
    }
  seq_slot.n_pages = n_pages;
}

// The slot's next sequence has dropped nothing that the host knows of.
void CudaTables::forget_drops(std::int32_t slot, const Stream& stream) {
  if (!seq_slots_[static_cast<std::size_t>(slot)].heads.empty()) reset_masks(slot, stream);
}

void CudaTables::reset_masks(std::int32_t slot, const Stream& stream) {
  SeqSlot& seq_slot = seq_slots_[static_cast<std::size_t>(slot)];
  seq_slot.heads.clear();
  seq_slot.device_drops = false;
  const auto stride = static_cast<std::size_t>(tables_.sequence_stride) * sizeof(std::int32_t);
  set_bytes(masks_.data() + static_cast<std::size_t>(slot) * stride, 0xff, stride, stream);
  const auto heads = static_cast<std::size_t>(ragged_.shift_stride) * sizeof(std::int32_t);
  set_bytes(shifts_.data() + static_cast<std::size_t>(slot) * heads, 0, heads, stream);
}

void CudaTables::take_masks(const Stream& stream) {
  if (masks_.size() > 0) return;
  masks_ = DeviceBuffer(entries_.size(), "which tokens of keys and values were dropped");
  ragged_.shift_stride = static_cast<std::int32_t>(shape_.blocks_per_page());
  shifts_ = DeviceBuffer(seq_slots_.size() * static_cast<std::size_t>(ragged_.shift_stride) * sizeof(std::int32_t),
                         "how many tokens were dropped");
  set_bytes(masks_.data(), 0xff, masks_.size(), stream);
  set_bytes(shifts_.data(), 0, shifts_.size(), stream);
  ragged_.masks = masks_.as<std::uint32_t>();
  ragged_.shifts = shifts_.as<std::int32_t>();
}

void CudaTables::add_ragged(const SequenceCache& sequence, std::int32_t slot, const Stream& stream) {
  take_masks(stream);
  SeqSlot& seq_slot = seq_slots_[static_cast<std::size_t>(slot)];
  const bool changed = seq_slot.revision != sequence.revision() || seq_slot.heads.empty();
  seq_slot.revision = sequence.revision();
  seq_slot.n_pages = 0;  // a sequence without drops must rewrite all its entries
  seq_slot.heads.resize(static_cast<std::size_t>(shape_.blocks_per_page()));
  mask_updates_.clear();
  shift_updates_.clear();
  for (std::int32_t layer = 0; layer < shape_.n_layers; ++layer)
    for (std::int32_t head = 0; head < shape_.n_kv_heads; ++head) {
      const std::int64_t index = std::int64_t{layer} * shape_.n_kv_heads + head,
                         at = slot * tables_.sequence_stride + index * tables_.max_pages;
      HeadPages& there = seq_slot.heads[static_cast<std::size_t>(index)];
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

// Masks that changed; entries after a head's pages are all ones, as initially.
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

void CudaTables::learn_masks(std::int32_t slot, std::int64_t head, std::span<const std::uint32_t> masks) {
  std::vector<HeadPages>& heads = seq_slots_[static_cast<std::size_t>(slot)].heads;
  heads.resize(static_cast<std::size_t>(shape_.blocks_per_page()));
  heads[static_cast<std::size_t>(head)].masks.assign(masks.begin(), masks.end());
}

void CudaTables::assign_slots(std::span<const SequenceCache* const> sequences, const Stream& stream,
                              std::span<std::int32_t> slots) {
  MNEME_CHECK(sequences.size() <= seq_slots_.size(), "{} sequences, tables for {}", sequences.size(),
              seq_slots_.size());
  n_staged_ = n_flushed_ = 0;
  ++steps_;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    slots[i] = find(*sequences[i]);
    if (slots[i] >= 0) seq_slots_[static_cast<std::size_t>(slots[i])].last_used = steps_;
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const bool ragged = sequences[i]->dropped();
    if (slots[i] < 0) {
      slots[i] = free_seq_slot(*sequences[i]);
      SeqSlot& seq_slot = seq_slots_[static_cast<std::size_t>(slots[i])];
      seq_slot.last_used = steps_;
      seq_slot.last = sequences[i];
      if (seq_slot.device_drops) reset_masks(slots[i], stream);
      if (!ragged) {
        seq_slot.revision = sequences[i]->revision();
        seq_slot.n_pages = 0;
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
