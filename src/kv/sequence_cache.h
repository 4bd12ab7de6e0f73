// One sequence's keys and values: page tables [layer][KV head][page] into a pool.
//
// A fork shares every block. A shared block is copied before its owner writes to it; only the last, partly filled page
// is ever written. Page tables are per KV head, so that methods can drop tokens head by head.
//
// Positions  count all tokens of the sequence and never change. A head that dropped tokens has holes in its positions;
// the kept tokens keep their order.
// Windows  Layers that attend a window (PagePool::windows()) release the pages behind it, which their tables still name:
// a sequence that is cut takes them back while they are unwritten.
// Memory  A dropped token's memory is freed with its page: at once when the page holds no kept token of the head, else
// when the head is compacted. A head is compacted when that frees at least a quarter as many pages as remain and no
// page to be written is shared.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kv/kv_run.h"
#include "src/kv/page_pool.h"
#include "src/kv/recurrent_state.h"

namespace mneme {

struct TokenRange {
  std::int32_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

class SequenceCache {
 public:
  explicit SequenceCache(PagePool& pool) : pool_(&pool), states_(pool) {}
  ~SequenceCache() { clear(); }
  SequenceCache(SequenceCache&& other) noexcept;
  SequenceCache& operator=(SequenceCache&& other) noexcept;
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  // Shares all blocks: one reference per block, no copy.
  SequenceCache fork() const;

  const KvShape& shape() const { return pool_->shape(); }
  std::int32_t length() const { return length_; }    // tokens of the sequence, dropped ones included
  std::int32_t n_pages() const { return n_pages_; }  // pages of length() tokens
  std::int64_t n_blocks() const;                     // blocks held, shared ones included
  KeyBasis key_basis() const { return key_basis_; }
  // Requires  nothing is stored, or `basis` is unchanged.
  void set_key_basis(KeyBasis basis);

  // Free blocks that extend(n_new) takes, including the copy of a shared last page.
  std::int64_t blocks_needed(std::int32_t n_new) const;
  // Makes positions [length, length + n_new) writable in every layer and KV head and counts them as stored. The caller
  // writes all of them before they are read. Requires  pool.n_free() >= blocks_needed(n_new).
  void extend(std::int32_t n_new);
  // As blocks_needed(), where the tokens come in steps of step_tokens at most and release_behind() follows each.
  std::int64_t blocks_to_end(std::int32_t n_new, std::int32_t step_tokens) const;
  // Releases the pages behind the window of layers that have one, but for KvWindows::kSlack tokens.
  void release_behind() { release_first(pool_->windows().first_page(length_ - KvWindows::kSlack), false); }
  // Releases the first n_pages pages of these layers. for_good: they hold nothing of use, and are never taken back.
  // Requires  the token at position length() does not attend them.
  void release_first(std::int32_t n_pages, bool for_good);
  // Pages that were released so, 0 in layers without a window.
  std::int32_t released_pages() const { return released_; }
  std::int32_t first_page(std::int32_t layer) const { return pool_->windows().has(layer) ? released_ : 0; }
  // Whether the layers with a window hold, or can take back, what the token at position `length` attends, and there is
  // a state of so many tokens.
  bool can_truncate(std::int32_t length) const;
  // The longest length up to `length` that it can be cut to.
  std::int32_t longest_cut(std::int32_t length) const;
  // Removes the tokens from `new_length` on and releases their pages. Requires  can_truncate(new_length). Pages that are
  // taken back may have been free.
  void truncate(std::int32_t new_length);
  void clear() { truncate(0); }

  // Address of a token's [K | V] pair. Requires  0 <= position < length; the head stores it.
  std::byte* token(std::int32_t layer, std::int32_t kv_head, std::int32_t position) const;
  // Blocks of the pages, oldest first; those before first_page(layer) are not this sequence's any more.
  std::span<const BlockId> table(std::int32_t layer, std::int32_t kv_head) const;
  // Appends the runs that store positions [begin, end) to `runs`, one run per page where nothing was dropped. Returns
  // the number of tokens.
  std::int32_t append_runs(std::int32_t layer, std::int32_t kv_head, std::int32_t begin, std::int32_t end,
                           std::vector<KvRun>& runs) const;
  // append_runs() for ascending units of unit_tokens tokens; a unit may take more than one run.
  std::int32_t append_units(std::int32_t layer, std::int32_t kv_head, std::span<const std::int32_t> units,
                            std::int32_t unit_tokens, std::vector<KvRun>& runs) const;
  // Appends the blocks of a page, layer after layer, KV head after KV head, at places from first_place on.
  // Requires  nothing was dropped; released_pages() <= page < n_pages().
  void append_places(std::int32_t page, std::int32_t first_place, std::vector<BlockPlace>& places) const;
  PagePool& pool() const { return *pool_; }
  // Of layers with a state in place of keys and values. extend() makes it writable; a step writes it.
  RecurrentStates& states() { return states_; }
  const RecurrentStates& states() const { return states_; }
  // Changes, to a value that no sequence had before, when an existing table entry may have changed; appended pages do
  // not change it. A copy of the tables stays valid while this is equal.
  std::uint64_t revision() const { return revision_; }

  // Drops all tokens of one head permanently, except those whose ranks (0: the oldest stored) are in `ranks`.
  // Requires  ranges ascending, disjoint, within [0, n_stored).
  void keep(std::int32_t layer, std::int32_t kv_head, std::span<const TokenRange> ranks);
  // keep() for several heads, each at most once; their tokens move in one batch.
  struct HeadRanks {
    std::int32_t layer = 0, kv_head = 0;
    std::span<const TokenRange> ranks;
  };
  void keep(std::span<const HeadRanks> heads);
  bool dropped() const { return !kept_.empty(); }  // any token of any head
  std::int32_t n_stored(std::int32_t layer, std::int32_t kv_head) const;
  // Positions that a head stores, ascending.
  std::vector<TokenRange> stored(std::int32_t layer, std::int32_t kv_head) const;
  // Indices of these tokens in the head's table, ascending; all are below n_slots, the index of the next token.
  std::vector<TokenRange> stored_slots(std::int32_t layer, std::int32_t kv_head) const;
  std::int32_t n_slots(std::int32_t layer, std::int32_t kv_head) const { return n_slots(table_index(layer, kv_head)); }
  // Tokens that the head stores before `position`: the rank of the token at `position`.
  std::int32_t rank_of(std::int32_t layer, std::int32_t kv_head, std::int32_t position) const;
  // Whether the last page, which the next token is written to, has other owners.
  bool shares_last_page() const;

 private:
  // Tokens with consecutive positions and consecutive table indices.
  struct KeptRun {
    std::int32_t position = 0, slot = 0, n = 0;
  };
  using KeptRuns = std::vector<KeptRun>;

  static std::uint64_t new_revision();
  std::int32_t first_page_of(std::size_t table) const {
    return released_ == 0 ? 0 : first_page(static_cast<std::int32_t>(table / shape().n_kv_heads));
  }
  void take_back(std::int32_t new_length);
  std::size_t table_index(std::int32_t layer, std::int32_t kv_head) const;
  // Null where the head dropped nothing: table indices are positions.
  const KeptRuns* kept(std::size_t table) const {
    return kept_.empty() || kept_[table].empty() ? nullptr : &kept_[table];
  }
  std::vector<TokenRange> ranges_of(std::int32_t layer, std::int32_t kv_head, std::int32_t KeptRun::*begin) const;
  std::int32_t n_slots(std::size_t table) const;  // one past the last used index
  std::byte* slot(std::size_t table, std::int32_t slot) const;
  void append_slots(std::size_t table, std::int32_t slot, std::int32_t n, std::size_t first_run,
                    std::vector<KvRun>& runs) const;
  void release_empty_pages(std::size_t table);
  void keep_ranks(std::size_t table, std::span<const TokenRange> ranks);
  void compact(std::size_t table, std::vector<TokenMove>& moves);
  void cut(std::size_t table, std::int32_t new_length);
  void forget_whole_heads();

  PagePool* pool_;
  RecurrentStates states_;
  std::int32_t length_ = 0;
  std::int32_t n_pages_ = 0;
  KeyBasis key_basis_ = KeyBasis::kPostRope;
  std::uint64_t revision_ = new_revision();
  std::int32_t released_ = 0;  // first pages of layers with a window
  // Their PagePool::content(), [page][table], layers without a window left out.
  std::vector<std::vector<std::uint32_t>> released_content_;
  std::vector<std::vector<BlockId>> tables_;  // [layer * n_kv_heads + kv_head][page]
  // By table; empty while nothing was dropped. A head that dropped tokens has at least one run, of 0 tokens where none
  // is left.
  std::vector<KeptRuns> kept_;
  std::vector<std::int32_t> n_kept_;  // by table: tokens of a head's runs
};

}  // namespace mneme
