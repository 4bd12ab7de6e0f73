// One sequence's keys and values: a table [layer][KV head][page] into a pool.
//
// A fork shares every block; a block that is shared is copied before its owner writes into it (only the last, partly
// filled page ever is). Tables are per KV head, so that methods which drop tokens can drop them head by head.
//
// Positions  count all tokens of the sequence and never change. A head that dropped tokens has holes in its positions;
//            what is left keeps its order, in as many slots as it needs.
// Memory     a dropped token's slot is free when its page is: at once when no kept token of that head lies in the page,
//            or when the head is compacted. That happens when at least a quarter as many pages are freed as are left,
//            and nobody shares the pages that are written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cache/page_pool.h"
#include "src/kernels/attention.h"

namespace mneme {

struct TokenRange {
  std::int32_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

class SequenceCache {
 public:
  explicit SequenceCache(PagePool& pool) : pool_(&pool) {}
  ~SequenceCache() { clear(); }
  SequenceCache(SequenceCache&& other) noexcept;
  SequenceCache& operator=(SequenceCache&& other) noexcept;
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  // The same tokens in the same blocks. Costs a reference per block and no copy.
  SequenceCache fork() const;

  const KvShape& shape() const { return pool_->shape(); }
  std::int32_t length() const { return length_; }    // tokens of the sequence, dropped ones included
  std::int32_t n_pages() const { return n_pages_; }  // that length() tokens take
  std::int64_t n_blocks() const;                     // held, shared ones included
  KeyBasis key_basis() const { return key_basis_; }
  // Requires  nothing is stored yet, or it is what it was.
  void set_key_basis(KeyBasis basis);

  // Free blocks that extend(n_new) takes, the copy of a shared last page included.
  std::int64_t blocks_needed(std::int32_t n_new) const;
  // Makes positions [length, length + n_new) writable in every layer and KV head, and counts them as stored: whoever
  // extends writes all of them before anybody reads. Requires  pool.n_free() >= blocks_needed(n_new).
  void extend(std::int32_t n_new);
  // Forgets the tokens from `new_length` on and gives their pages back.
  void truncate(std::int32_t new_length);
  void clear() { truncate(0); }

  // Where the [K | V] pair of a token lies. Requires  0 <= position < length.
  std::byte* token(std::int32_t layer, std::int32_t kv_head, std::int32_t position) const;
  // Block of every page, oldest first.
  std::span<const BlockId> table(std::int32_t layer, std::int32_t kv_head) const;
  // Appends the runs that hold what is stored of positions [begin, end) to `runs`, one a page where nothing was
  // dropped. Returns how many tokens that is.
  std::int32_t append_runs(std::int32_t layer, std::int32_t kv_head, std::int32_t begin, std::int32_t end,
                           std::vector<KvRun>& runs) const;
  // The same for units of unit_tokens tokens, ascending, not always one run a page.
  std::int32_t append_units(std::int32_t layer, std::int32_t kv_head, std::span<const std::int32_t> units,
                            std::int32_t unit_tokens, std::vector<KvRun>& runs) const;
  PagePool& pool() const { return *pool_; }
  // Changes, to a number that no sequence had before, whenever blocks of the tables may be others than they were; pages
  // that are added leave it. So a copy of the tables elsewhere is good for as long as this is the same.
  std::uint64_t revision() const { return revision_; }

  // Drops all tokens of one head for good but those whose ranks (0: the oldest that is stored) are in `ranks`.
  // Requires  ascending, apart from one another, within [0, n_stored).
  void keep(std::int32_t layer, std::int32_t kv_head, std::span<const TokenRange> ranks);
  // The same of several heads, each named once: what is left of them moves together.
  struct HeadRanks {
    std::int32_t layer = 0, kv_head = 0;
    std::span<const TokenRange> ranks;
  };
  void keep(std::span<const HeadRanks> heads);
  bool dropped() const { return !kept_.empty(); }  // anything, in any head
  // From this position on every head holds every token; 0 where nothing was dropped.
  std::int32_t dropped_before() const;
  std::int32_t n_stored(std::int32_t layer, std::int32_t kv_head) const;
  // Positions that a head holds, ascending.
  std::vector<TokenRange> stored(std::int32_t layer, std::int32_t kv_head) const;
  // The slots of its table that hold them, ascending; all are below n_slots, where the next token goes.
  std::vector<TokenRange> stored_slots(std::int32_t layer, std::int32_t kv_head) const;
  std::int32_t n_slots(std::int32_t layer, std::int32_t kv_head) const { return n_slots(table_index(layer, kv_head)); }
  // How many tokens the head holds before `position`: the rank of what is stored there.
  std::int32_t rank_of(std::int32_t layer, std::int32_t kv_head, std::int32_t position) const;
  // The last page, in which the next token is written, has other owners too.
  bool shares_last_page() const;

 private:
  // Tokens whose positions follow one another, and whose slots do.
  struct Stretch {
    std::int32_t position = 0, slot = 0, n = 0;
  };
  using Stretches = std::vector<Stretch>;

  static std::uint64_t new_revision();
  std::size_t table_index(std::int32_t layer, std::int32_t kv_head) const;
  // Null where the head dropped nothing: its slots are its positions.
  const Stretches* kept(std::size_t table) const {
    return kept_.empty() || kept_[table].empty() ? nullptr : &kept_[table];
  }
  std::vector<TokenRange> ranges_of(std::int32_t layer, std::int32_t kv_head, std::int32_t Stretch::*begin) const;
  std::int32_t n_slots(std::size_t table) const;  // up to the last that is used
  std::byte* slot(std::size_t table, std::int32_t slot) const;
  void append_slots(std::size_t table, std::int32_t slot, std::int32_t n, std::size_t first_run,
                    std::vector<KvRun>& runs) const;
  void release_empty_pages(std::size_t table);
  void keep_ranks(std::size_t table, std::span<const TokenRange> ranks);
  void compact(std::size_t table, std::vector<TokenMove>& moves);
  void cut(std::size_t table, std::int32_t new_length);
  void forget_whole_heads();

  PagePool* pool_;
  std::int32_t length_ = 0;
  std::int32_t n_pages_ = 0;
  KeyBasis key_basis_ = KeyBasis::kTurned;
  std::uint64_t revision_ = new_revision();
  std::vector<std::vector<BlockId>> tables_;  // [layer * n_kv_heads + kv_head][page]
  // As tables_; empty while nothing was dropped. A head that dropped something has at least one stretch, of no tokens
  // where none is left.
  std::vector<Stretches> kept_;
  std::vector<std::int32_t> n_kept_;  // as kept_: tokens of a head's stretches
};

}  // namespace mneme
