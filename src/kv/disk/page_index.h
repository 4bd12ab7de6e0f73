// Pages by what they are pages of, in slots of a file or of memory, and in the order of their use.
//
// Eviction  When no slot is free, the page goes that was used longest ago. A page is used when it, or one after it in
//           a sequence, is found or stored, so that the ends of sequences go first and no
//           unreachable page is left.
// Threads   one at a time.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/base/function_ref.h"
#include "src/kv/disk/page_journal.h"

namespace mneme {

class PageIndex {
 public:
  struct Page {
    PageKey key;
    std::int64_t slot = 0;
    std::int32_t users = 0;  // while there are any, it is not evicted
    std::list<std::uint64_t>::iterator used;
  };

  explicit PageIndex(std::int64_t n_slots) : n_slots_(n_slots) {}

  std::int64_t n_slots() const { return n_slots_; }
  std::int64_t size() const { return std::ssize(pages_); }
  // Whether there is a page of this hash, which may be another one.
  bool has_hash(std::uint64_t hash) const { return pages_.contains(hash); }
  // Null: there is no such page.
  Page* find(const PageKey& key);
  const Page* find(const PageKey& key) const { return const_cast<PageIndex*>(this)->find(key); }
  Page& at(std::uint64_t hash) { return pages_.at(hash); }
  // How many pages of a sequence are here, from its first on. They are used with that.
  std::int32_t find_first(std::span<const PageKey> sequence);

  // A slot for a page: free, or that of the least recently used page. `may_evict` is called with that page before it is
  // evicted; false: it stays, and there is no slot.
  std::optional<std::int64_t> take_slot(FunctionRef<bool(const Page&)> may_evict);
  // Requires  no page of this hash; a slot that was taken, or that no page had before.
  Page& insert(const PageKey& key, std::int64_t slot);
  void erase(std::uint64_t hash);
  // Slots below the highest of any page that no page has are free from now on.
  void free_others();

  // Calls `take` with all pages, parents before those that follow them, the sequences that were used longest ago first.
  void for_each_by_use(FunctionRef<void(const Page&)> take) const;
  // Aborts where index, order and slots contradict each other: for tests.
  void check_invariants() const;

 private:
  std::int64_t n_slots_;
  std::unordered_map<std::uint64_t, Page> pages_;
  std::list<std::uint64_t> used_;  // hashes, the last used first; before those that follow it
  std::vector<std::int64_t> free_slots_;
  std::int64_t next_slot_ = 0;
};

}  // namespace mneme
