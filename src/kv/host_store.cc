#include "src/kv/host_store.h"

#include <algorithm>
#include <limits>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

// Places are counted in blocks.
std::int64_t slots_of(const KvShape& shape, std::int64_t bytes) {
  const auto page = static_cast<std::int64_t>(shape.whole_page_bytes());
  if (bytes < page)
    fail(ErrorKind::kOption, "{} bytes of host memory have no room for a page, which takes {}", bytes, page);
  return std::min(bytes / page, std::numeric_limits<std::int32_t>::max() / shape.blocks_per_page());
}

}  // namespace

HostStore::HostStore(const PagePool& pool, std::int64_t bytes)
    : pool_(pool),
      page_bytes_(static_cast<std::int64_t>(pool.shape().whole_page_bytes())),
      index_(slots_of(pool.shape(), bytes)),
      memory_(pool.host_memory(index_.n_slots() * page_bytes_)) {}

HostStore::~HostStore() {
  pool_.wait();
}

void HostStore::append_places(const SequenceCache& cache, const PageIndex::Page& page) {
  cache.append_places(page.key.number, count32(page.slot * pool_.shape().blocks_per_page()), places_);
}

void HostStore::copy(BlocksGo go) {
  if (places_.empty()) return;
  pool_.copy_blocks(memory_, places_, go);
  places_.clear();
}

bool HostStore::store(const SequenceCache& cache, std::span<const PageKey> keys) {
  // No page of a sequence is evicted for the ones that follow it.
  std::vector<PageIndex::Page*> held;
  const auto evicts = [&](const PageIndex::Page&) {
    ++stats_.evicted;
    return true;
  };
  bool all = true;
  for (const PageKey& key : keys) {
    PageIndex::Page* page = index_.find(key);
    if (page == nullptr) {
      const auto slot = index_.has_hash(key.hash) ? std::nullopt : index_.take_slot(evicts);
      all = slot.has_value();
      if (!all) break;
      page = &index_.insert(key, *slot);
      append_places(cache, *page);
      ++stats_.stored;
    }
    ++page->users;
    held.push_back(page);
  }
  for (PageIndex::Page* page : held) --page->users;
  copy(BlocksGo::kOut);
  return all;
}

void HostStore::load(SequenceCache& cache, std::span<const PageKey> keys) {
  for (const PageKey& key : keys) {
    const PageIndex::Page* page = index_.find(key);
    MNEME_CHECK(page != nullptr, "page {} is not here", key.number);
    append_places(cache, *page);
    ++stats_.loaded;
  }
  copy(BlocksGo::kIn);
}

void HostStore::hold(std::span<const PageKey> keys) {
  for (const PageKey& key : keys) ++index_.at(key.hash).users;
}

void HostStore::release(std::span<const PageKey> keys) {
  for (const PageKey& key : keys) --index_.at(key.hash).users;
}

void HostStore::drop(std::span<const PageKey> keys) {
  for (const PageKey& key : keys) {
    const PageIndex::Page* page = index_.find(key);
    if (page != nullptr && page->users == 0) index_.erase(key.hash);
  }
}

HostStore::Stats HostStore::stats() const {
  Stats s = stats_;
  s.pages = index_.size();
  s.slots = index_.n_slots();
  s.page_bytes = page_bytes_;
  return s;
}

}  // namespace mneme
