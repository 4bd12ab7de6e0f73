// One sequence's keys and values: a table [layer][KV head][page] into a pool.
//
// A fork shares every block; a block that is shared is copied before its owner writes into it (only the last, partly
// filled page ever is). Tables are per KV head, so that methods which drop tokens can drop them head by head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/cache/page_pool.h"
#include "src/kernels/attention.h"

namespace mneme {

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
  std::int32_t length() const { return length_; }  // tokens stored
  std::int32_t n_pages() const { return n_pages_; }
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
  // Appends the runs that hold positions [begin, end) to `runs`, one a page.
  void append_runs(std::int32_t layer, std::int32_t kv_head, std::int32_t begin, std::int32_t end,
                   std::vector<KvRun>& runs) const;
  PagePool& pool() const { return *pool_; }
  // Changes, to a number that no sequence had before, whenever blocks of the tables may be others than they were; pages
  // that are added leave it. So a copy of the tables elsewhere is good for as long as this is the same.
  std::uint64_t revision() const { return revision_; }

 private:
  static std::uint64_t new_revision();
  std::size_t table_index(std::int32_t layer, std::int32_t kv_head) const;

  PagePool* pool_;
  std::int32_t length_ = 0;
  std::int32_t n_pages_ = 0;
  KeyBasis key_basis_ = KeyBasis::kTurned;
  std::uint64_t revision_ = new_revision();
  std::vector<std::vector<BlockId>> tables_;  // [layer * n_kv_heads + kv_head][page]
};

}  // namespace mneme
