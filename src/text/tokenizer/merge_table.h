// Byte-pair merges: which adjacent symbols merge, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mneme {

// A token id, or a negative number for a character or byte without a token that still may take part in merges.
using Symbol = std::int32_t;

class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = kNever;  // lower merges first
    Symbol result = 0;
  };
  static constexpr std::uint32_t kNever = 0xFFFFFFFF;

  explicit MergeTable(std::size_t expected = 0);

  // The lower rank of two merges of the same pair wins.  Requires  rank != kNever.
  void add(Symbol left, Symbol right, Merge merge);
  // rank is kNever where the pair does not merge.
  Merge find(Symbol left, Symbol right) const;
  std::size_t size() const { return size_; }

  // Merges until no pair is left: lowest rank first, leftmost among equals. O(n log n).
  // Requires  fewer than 2^32 symbols.
  void reduce(std::vector<Symbol>& symbols) const;

 private:
  struct Slot {
    std::uint64_t key = 0;
    Merge merge;
  };
  std::size_t slot_of(std::uint64_t key) const;
  void grow();
  void reduce_short(std::vector<Symbol>& symbols) const;
  void reduce_long(std::vector<Symbol>& symbols) const;

  std::vector<Slot> slots_;  // open addressing, at most half full; a power of two
  std::size_t size_ = 0;
  int shift_ = 0;
};

}  // namespace mneme
