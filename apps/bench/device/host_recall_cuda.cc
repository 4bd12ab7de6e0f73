#include "apps/bench/device/host_recall_cuda.h"

#include <algorithm>
#include <limits>

#include "apps/bench/device/scatter_pages_cuda.h"
#include "src/base/check.h"

namespace mneme {
namespace {

constexpr std::int32_t kInUse = std::numeric_limits<std::int32_t>::max();

std::int32_t* at(const PinnedBuffer& b, std::int64_t entry) {
  return b.as<std::int32_t>() + entry;
}

template <RecallBy kBy>
std::unique_ptr<PageRecall> make(const DeviceCache& cache) {
  return std::make_unique<CudaHostRecall>(cache, kBy);
}

}  // namespace

RecallForm recall_form(RecallBy by) {
  switch (by) {
    case RecallBy::kMerged:
      return {};
    case RecallBy::kGather:
      return {.merged = false};
    case RecallBy::kCopies:
      return {.merged = false, .by_host = make<RecallBy::kCopies>};
    case RecallBy::kBatch:
      return {.merged = false, .by_host = make<RecallBy::kBatch>};
    case RecallBy::kTokenMajor:
      return {.merged = false, .by_host = make<RecallBy::kTokenMajor>};
    case RecallBy::kStaged:
      return {.merged = false, .by_host = make<RecallBy::kStaged>};
    case RecallBy::kStagedTwice:
      return {.merged = false, .by_host = make<RecallBy::kStagedTwice>};
  }
  return {};
}

CudaHostRecall::CudaHostRecall(const DeviceCache& cache, RecallBy by) : cache_(cache), by_(by) {
  const auto states = static_cast<std::size_t>(cache.n_layers) * static_cast<std::size_t>(cache.n_seq_slots),
             heads = static_cast<std::size_t>(cache.n_kv_heads), listed = static_cast<std::size_t>(cache.max_listed);
  heads_.resize(states * heads);
  counts_.resize(states);
  selected_ids_ = PinnedBuffer(static_cast<std::size_t>(cache.n_seq_slots) * heads * listed * 4);
  listed_ = PinnedBuffer(states * heads * listed * 4);
}

// As resolve() of unit_resolve.cuh: evicts the least recently selected slots, lowest index first among equals.
void CudaHostRecall::take(const Row& row, std::int32_t layer, std::int32_t slot_layer, std::int32_t kv_head) {
  const std::int32_t length = row.cache->length(), first = row.plan.region.sink / kKvPageTokens,
                     stop = (length + kKvPageTokens - 1) / kKvPageTokens,
                     window = std::max(first, stop - row.plan.region.recent / kKvPageTokens), n_window = stop - window,
                     n = std::min(row.plan.region.n_select, window - first), fixed = first + n_window;
  const std::int64_t index =
      (std::int64_t{slot_layer} * cache_.n_seq_slots + row.seq_slot) * cache_.n_kv_heads + kv_head;
  Head& h = heads_[static_cast<std::size_t>(index)];
  const auto n_free = static_cast<std::size_t>(cache_.n_slots - fixed);
  if (row.reset || h.page_of.size() != n_free) h = {std::vector(n_free, -1), std::vector(n_free, -2)};
  const std::int32_t* selected_ids =
      at(selected_ids_, (std::int64_t{row.seq_slot} * cache_.n_kv_heads + kv_head) * cache_.max_listed);
  std::int32_t* listed = at(listed_, index * cache_.max_listed);
  const auto base = static_cast<std::int32_t>(index * cache_.n_slots);

  for (std::int32_t i = 0; i < first; ++i) listed[i] = base + i;
  missing_.clear();
  std::int32_t replaced = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    const auto slot = std::find(h.page_of.begin(), h.page_of.end(), selected_ids[i]) - h.page_of.begin();
    if (static_cast<std::size_t>(slot) == n_free) {
      missing_.push_back(i);
      continue;
    }
    std::int32_t& used = h.last_used[static_cast<std::size_t>(slot)];
    replaced += used < length - 1 ? 1 : 0;
    used = kInUse;
    listed[first + i] = base + fixed + static_cast<std::int32_t>(slot);
  }
  free_.clear();
  for (std::size_t i = 0; i < n_free; ++i)
    if (h.last_used[i] != kInUse) free_.push_back(static_cast<std::int32_t>(i));
  std::stable_sort(free_.begin(), free_.end(), [&](std::int32_t a, std::int32_t b) {
    return h.last_used[static_cast<std::size_t>(a)] < h.last_used[static_cast<std::size_t>(b)];
  });
  MNEME_CHECK(missing_.size() <= free_.size(), "{} pages for {} slots", missing_.size(), free_.size());
  const std::span<const BlockId> table = row.cache->table(layer, kv_head);
  const std::size_t bytes = cache_.unit_bytes();
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    const std::int32_t slot = free_[i], page = selected_ids[missing_[i]];
    copies_.push_back({cache_.slots.data + static_cast<std::size_t>(base + fixed + slot) * bytes,
                       row.cache->pool().data(table[static_cast<std::size_t>(page)]), bytes});
    h.page_of[static_cast<std::size_t>(slot)] = page;
    h.last_used[static_cast<std::size_t>(slot)] = kInUse;
    listed[first + missing_[i]] = base + fixed + slot;
  }
  for (std::int32_t& used : h.last_used)
    if (used == kInUse) used = length;
  for (std::int32_t i = 0; i < n_window; ++i) listed[first + n + i] = base + first + (window + i) % n_window;

  SlotCounts& counts = counts_[static_cast<std::size_t>(slot_layer * cache_.n_seq_slots + row.seq_slot)];
  counts.selected += static_cast<std::uint64_t>(n);
  counts.missing += missing_.size();
  counts.replaced += missing_.size() + static_cast<std::uint64_t>(replaced);
}

void CudaHostRecall::fetch_staged(std::size_t n_buffers, const Stream& stream) {
  const CudaContext context{.stream = stream.get()};
  if (staging_.empty()) {
    copying_ = Stream::make();
    const auto most = static_cast<std::size_t>(cache_.max_listed) * cache_.unit_bytes();
    for (int i = 0; i < 2; ++i)
      staging_.push_back({DeviceBuffer(most, "pages in flight to slots"), Event::make(), Event::make()});
  }
  // No copy into the buffers is in flight: the host has waited for everything before this layer's recall.
  const Stream& copies_in = n_buffers == 1 ? stream : copying_;
  std::vector<std::byte*> to;
  for (std::size_t i = 0, begin = 0; i < ends_.size(); begin = ends_[i++]) {
    if (begin == ends_[i]) continue;
    Staging& s = staging_[i % n_buffers];
    if (n_buffers > 1) copying_.wait(s.free);
    std::byte* at = s.pages.data();
    for (std::size_t c = begin; c < ends_[i]; ++c, at += cache_.unit_bytes())
      copy_bytes(at, copies_[c].from, copies_[c].bytes, copies_in);
    if (n_buffers > 1) {
      s.arrived.record(copying_);
      stream.wait(s.arrived);
    }
    for (std::size_t c = begin; c < ends_[i]; c += to.size()) {
      to.clear();
      for (std::size_t k = c; k < std::min(c + kMaxScattered, ends_[i]); ++k) to.push_back(copies_[k].to);
      scatter_pages_cuda(s.pages.data() + (c - begin) * cache_.unit_bytes(), to, cache_.unit_bytes(), context);
    }
    if (n_buffers > 1) s.free.record(stream);
  }
}

void CudaHostRecall::recall(std::span<const Row> rows, std::int32_t layer, std::int32_t slot_layer,
                            const Stream& stream) {
  const std::int64_t heads = cache_.n_kv_heads, listed = cache_.max_listed,
                     state = std::int64_t{slot_layer} * cache_.n_seq_slots;
  const std::size_t bytes = static_cast<std::size_t>(heads * listed) * 4;
  const auto selects = [](const Row& r) { return r.cache->length() > r.plan.region.budget; };
  for (const Row& r : rows)
    if (selects(r))
      copy_bytes(at(selected_ids_, r.seq_slot * heads * listed),
                 cache_.selection.ids[0] + (state + r.seq_slot) * heads * listed, bytes, stream);
  stream.synchronize();
  copies_.clear(), ends_.clear();
  for (const Row& r : rows)
    for (std::int32_t head = 0; selects(r) && head < heads; ++head) {
      take(r, layer, slot_layer, head);
      ends_.push_back(copies_.size());
    }
  if (by_ == RecallBy::kStaged || by_ == RecallBy::kStagedTwice) {
    fetch_staged(by_ == RecallBy::kStaged ? 1 : 2, stream);
  } else if (by_ == RecallBy::kBatch) {
    copy_batch(copies_, stream);
  } else if (by_ == RecallBy::kTokenMajor) {
    const std::size_t piece = cache_.token_bytes(), pitch = piece * static_cast<std::size_t>(heads);
    const PagePool& pool = rows.front().cache->pool();
    const std::byte* last =
        pool.data(BlockId(0)) + static_cast<std::size_t>(pool.n_blocks()) * cache_.unit_bytes() - pitch * kKvPageTokens;
    for (const CopyRequest& c : copies_)
      copy_rows(c.to, piece, std::min(static_cast<const std::byte*>(c.from), last), pitch, piece, kKvPageTokens,
                stream);
  } else {
    for (const CopyRequest& c : copies_) copy_bytes(c.to, c.from, c.bytes, stream);
  }
  for (const Row& r : rows)
    if (selects(r))
      copy_bytes(cache_.slots.listed + (state + r.seq_slot) * heads * listed,
                 at(listed_, (state + r.seq_slot) * heads * listed), bytes, stream);
}

}  // namespace mneme
