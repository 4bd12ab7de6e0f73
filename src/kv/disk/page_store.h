// Pages of keys and values on a disk, by what they are pages of: the same tokens after the same tokens.
//
// A page here is what a sequence stores of kPageTokens tokens, all layers and KV heads together: one slot of a file.
// Whoever computes a prompt finds the pages that it begins with, after a restart as well.
//
// Eviction  as PageIndex: the pages that were used longest ago, the ends of sequences first.
// Crashes   kill -9 loses pages that were being written, and nothing else. Each page is checked when it is read; one
//           that is damaged is forgotten and computed again.
// Privacy   The folder has the documents in plain form (tokens in the journal, keys and values). Files have mode 0600.
// Threads   one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/base/function_ref.h"
#include "src/kv/disk/page_index.h"
#include "src/kv/disk/page_journal.h"
#include "src/kv/disk/slot_file.h"

namespace mneme {

class PageStore {
 public:
  struct Options {
    std::filesystem::path folder;  // made if it is not there
    std::int64_t bytes = 0;        // of pages; the journal comes on top, 184 bytes a page
    std::uint64_t identity = 0;    // pages of another are forgotten
    DiskIo io = DiskIo::kAuto;
    // Stands before the file: for tests of what disks do.
    std::function<std::unique_ptr<SlotFile>(std::unique_ptr<SlotFile>)> wrap = {};
  };
  // page_bytes: of one page over all layers and KV heads.
  //
  // Errors  kFile; kResource: another process uses the folder; kOption: no room for a page.
  PageStore(std::size_t page_bytes, const Options& options);
  // On another form of file, for tests of what disks do.
  PageStore(std::size_t page_bytes, const Options& options, std::unique_ptr<SlotFile> file);
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  // How many pages of a sequence are here, from its first on. They are used with that.
  std::int32_t find(std::span<const PageKey> sequence) { return index_.find_first(sequence); }
  bool contains(const PageKey& key) const { return index_.find(key) != nullptr; }

  enum class Begun : std::uint8_t {
    kYes,
    kBusy,  // as many transfers are in flight as there are buffers: poll()
    kNot,   // store: there is such a page, or no room for one; load: there is none
  };
  // Begins to write a page, which can be found from now on. `fill` writes its bytes, at once. A page that cannot be
  // written is forgotten.
  Begun store(const PageKey& key, FunctionRef<void(std::span<std::byte>)> fill);
  // Begins to read a page, which poll() hands out.
  Begun load(const PageKey& key, std::uint64_t tag);
  // Ends transfers: with `wait`, at least one where any is in flight. Calls `take` with each page that was read, in no
  // order; without bytes: it could not be read, or is damaged, and is forgotten.
  void poll(bool wait, FunctionRef<void(std::uint64_t tag, std::span<const std::byte> bytes)> take);
  // Forgets a page that is of no use, unless it is in flight.
  void drop(const PageKey& key);
  // Transfers that may be in flight at once, and those of them that may still begin.
  std::int32_t n_buffers() const { return static_cast<std::int32_t>(buffers_.size()); }
  std::int32_t n_free_buffers() const { return static_cast<std::int32_t>(free_buffers_.size()); }
  // Transfers in flight.
  std::int64_t in_flight() const { return in_flight_; }
  // Waits for all writes. Requires  no load in flight.
  void flush();

  struct Stats {
    std::int64_t pages = 0, slots = 0;
    std::int64_t stored = 0, loaded = 0, evicted = 0;  // pages so far
    std::int64_t failed_writes = 0, failed_reads = 0;  // of these, the damaged ones too
  };
  Stats stats() const;
  std::size_t slot_bytes() const { return slot_bytes_; }
  // Aborts where index, order and slots contradict each other: for tests.
  void check_invariants() const;

 private:
  // What a slot holds.
  struct Content {
    std::uint64_t checksum = 0;
    bool written = false;
    std::size_t writer = 0;  // until then: the buffer that has it
  };
  struct Buffer {
    std::byte* bytes = nullptr;
    bool writes = false;
    std::uint64_t hash = 0, checksum = 0, tag = 0;
  };
  void replay(const std::vector<JournalEntry>& entries);
  PageIndex::Page& insert(const PageKey& key, std::int64_t slot, const Content& content);
  bool erase(const PageIndex::Page& page);
  void end_write(const Buffer& buffer, int error);
  void compact_journal();

  std::size_t page_bytes_, slot_bytes_;
  PageIndex index_;
  PageJournal journal_;
  std::unique_ptr<SlotFile> file_;
  std::unique_ptr<std::byte, void (*)(std::byte*)> memory_;
  std::vector<Buffer> buffers_;
  std::vector<std::size_t> free_buffers_;
  std::vector<std::size_t> ready_;  // loads of pages that are being written
  std::vector<Content> content_;    // by slot
  std::int64_t in_flight_ = 0, n_unwritten_ = 0;
  Stats stats_;
};

}  // namespace mneme
