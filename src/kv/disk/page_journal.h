// The journal of a page store: which slot holds which page, in a form that a crash at any point leaves readable.
//
// A header (version, slot size, whose pages they are), then entries of one size, each with a checksum, appended in
// order. A crash can only truncate the last one; whatever follows an entry that is not whole is cut off. Pages have
// checksums of their own in their entries, so that neither file has to be synced before the other.
//
// Threads  one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "src/kv/page_pool.h"

namespace mneme {

// A page of tokens after the pages before it.
struct PageKey {
  std::uint64_t hash = 0;    // of all tokens up to its end, and of who may share them
  std::uint64_t parent = 0;  // of the page before it; meaningless for the first
  std::int32_t number = 0;   // of the page in its sequence, from 0
  std::array<std::int32_t, kPageTokens> tokens{};
  bool operator==(const PageKey&) const = default;
};

struct JournalEntry {
  enum class Op : std::uint32_t { kStored = 1, kErased = 2 };
  Op op = Op::kStored;
  std::int64_t slot = 0;
  PageKey key;
  std::uint64_t checksum = 0;  // of the page's bytes: XXH3, 64 bits, seed 0
  bool operator==(const JournalEntry&) const = default;
};

class PageJournal {
 public:
  struct Header {
    std::uint64_t slot_bytes = 0;
    std::uint64_t identity = 0;  // hash of the model and of how keys and values are stored
    bool operator==(const Header&) const = default;
  };

  // Opens or makes the journal, for this process alone, and reads its entries. One with another header, or with none
  // that can be read, is begun again.
  //
  // Errors  kFile: it cannot be opened or written. kResource: another process has it open.
  PageJournal(const std::filesystem::path& path, const Header& header);
  ~PageJournal();
  PageJournal(const PageJournal&) = delete;
  PageJournal& operator=(const PageJournal&) = delete;

  // Once: the entries that were there.
  std::vector<JournalEntry> take_entries() { return std::exchange(entries_, {}); }
  std::int64_t n_entries() const { return n_entries_; }
  // False: the write failed, and the journal is as before; if it cannot be restored, nothing is written any more.
  bool append(const JournalEntry& entry);
  // Replaces all entries, at once or not at all. False: as append().
  bool rewrite(const std::vector<JournalEntry>& entries);

 private:
  void read_all();
  void begin_again();
  bool write_at(std::uint64_t offset, const std::vector<std::byte>& bytes) const;

  std::filesystem::path path_;
  Header header_;
  int fd_ = -1, lock_ = -1;
  std::vector<JournalEntry> entries_;
  std::int64_t n_entries_ = 0;
  bool broken_ = false;
};

}  // namespace mneme
