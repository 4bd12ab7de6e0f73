#include "src/kv/disk/page_index.h"

#include <algorithm>
#include <unordered_set>

#include "src/base/check.h"
#include "src/base/size32.h"

namespace mneme {

PageIndex::Page* PageIndex::find(const PageKey& key) {
  const auto it = pages_.find(key.hash);
  return it != pages_.end() && it->second.key == key ? &it->second : nullptr;
}

std::int32_t PageIndex::find_first(std::span<const PageKey> sequence) {
  std::int32_t n = 0;
  while (n < size32(sequence) && find(sequence[n]) != nullptr) ++n;
  for (std::int32_t i = n - 1; i >= 0; --i) used_.splice(used_.begin(), used_, pages_.at(sequence[i].hash).used);
  return n;
}

std::optional<std::int64_t> PageIndex::take_slot(FunctionRef<bool(const Page&)> may_evict) {
  if (free_slots_.empty() && next_slot_ < n_slots_) return next_slot_++;
  if (free_slots_.empty()) {
    const auto oldest =
        std::find_if(used_.rbegin(), used_.rend(), [&](std::uint64_t hash) { return pages_.at(hash).users == 0; });
    if (oldest == used_.rend() || !may_evict(pages_.at(*oldest))) return std::nullopt;
    erase(*oldest);
  }
  const std::int64_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

// Goes behind the page before it, so that the ends of sequences are evicted first.
PageIndex::Page& PageIndex::insert(const PageKey& key, std::int64_t slot) {
  next_slot_ = std::max(next_slot_, slot + 1);
  const auto parent = key.number > 0 ? pages_.find(key.parent) : pages_.end();
  const auto before = parent == pages_.end() ? used_.begin() : std::next(parent->second.used);
  const auto used = used_.insert(before, key.hash);
  return pages_.emplace(key.hash, Page{.key = key, .slot = slot, .used = used}).first->second;
}

void PageIndex::erase(std::uint64_t hash) {
  const auto it = pages_.find(hash);
  used_.erase(it->second.used);
  free_slots_.push_back(it->second.slot);
  pages_.erase(it);
}

void PageIndex::free_others() {
  std::vector<bool> taken(next_slot_);
  for (const auto& [hash, page] : pages_) taken[page.slot] = true;
  free_slots_.clear();
  for (std::int64_t slot = 0; slot < next_slot_; ++slot)
    if (!taken[slot]) free_slots_.push_back(slot);
}

void PageIndex::for_each_by_use(FunctionRef<void(const Page&)> take) const {
  std::unordered_set<std::uint64_t> told;
  for (auto hash = used_.rbegin(); hash != used_.rend(); ++hash) {
    std::vector<const Page*> path;
    for (auto at = pages_.find(*hash); at != pages_.end() && told.insert(at->first).second;
         at = at->second.key.number > 0 ? pages_.find(at->second.key.parent) : pages_.end())
      path.push_back(&at->second);
    for (auto page = path.rbegin(); page != path.rend(); ++page) take(**page);
  }
}

void PageIndex::check_invariants() const {
  std::unordered_map<std::int64_t, int> slots;
  for (const auto& [hash, page] : pages_) {
    ++slots[page.slot];
    MNEME_CHECK(hash == page.key.hash && *page.used == hash && page.users >= 0, "page {:x}", hash);
  }
  for (const std::int64_t slot : free_slots_) ++slots[slot];
  for (const auto& [slot, n] : slots)
    MNEME_CHECK(n == 1 && slot >= 0 && slot < next_slot_, "slot {} of {} has {} owners", slot, next_slot_, n);
  MNEME_CHECK(std::ssize(slots) == next_slot_, "{} of {} slots have an owner", slots.size(), next_slot_);
  MNEME_CHECK(used_.size() == pages_.size(), "{} pages in order, {} in all", used_.size(), pages_.size());
}

}  // namespace mneme
