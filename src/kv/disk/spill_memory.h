// Memory of blocks, more of them than fit: a file's mapping, of which the blocks that are used most often lie in memory
// and the others in the file alone.
//
// Content    never depends on what is in memory: the first reader of an absent block fetches it. So any thread may
//            read and write blocks at any time.
// Eviction   by extents, the fewest blocks that are whole pages of the system: the coldest of a sample of 16. Heat is
//            the number of steps that used an extent, each counting half after 8 more; of equals the one of the lower
//            block goes, so that what a step reads in turns (full attention over more than fits) stays in part, where
//            the least recently used would go just before it is wanted.
// Bound      resident_bytes after each layer of a step. Within a layer those blocks lie on top that it reads, up to half
//            as much again.
// Failure    a file that cannot be written any more keeps what is in memory there, from then on without a bound. One
//            that cannot be read ends the process (SIGBUS): no copy of the keys and values is left.
//
// The file has no name and ends with the process. All of it is allocated at the start, so that a full disk refuses the
// start and no later step.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

namespace mneme {

struct SpillOptions {
  std::filesystem::path folder;  // made if it is not there
  std::int64_t resident_bytes = 0;
};

class SpillMemory {
 public:
  // Errors  kFile: no such folder can be made, or no room in it for n_blocks. kResource: no address space.
  SpillMemory(std::size_t block_bytes, std::int64_t n_blocks, const SpillOptions& options);
  ~SpillMemory();
  SpillMemory(const SpillMemory&) = delete;
  SpillMemory& operator=(const SpillMemory&) = delete;

  std::byte* base() const { return base_; }
  // The block is about to be read or written. Any thread.
  void touch(std::int64_t block) {
    const std::int64_t extent = block / blocks_per_extent_;
    std::atomic<std::uint32_t>& seen = seen_[extent];
    const std::uint32_t now = period_.load(std::memory_order_relaxed);
    if (seen.load(std::memory_order_relaxed) == now || seen.exchange(now, std::memory_order_relaxed) == now) return;
    use(extent);
  }
  // The layer's blocks are no longer needed: memory beyond the bound is released.
  void end_layer();
  // Heat of earlier steps counts less.
  void end_step();

  struct Stats {
    std::int64_t resident_bytes = 0, file_bytes = 0;
    std::int64_t evicted_bytes = 0, fetched_bytes = 0;  // so far
    bool failed = false;                                // the file cannot be written any more
  };
  Stats stats() const;

 private:
  void open(const std::filesystem::path& folder, std::int64_t bytes);
  void use(std::int64_t extent);
  bool colder(std::int32_t a, std::int32_t b) const;  // of equals the lower block
  std::int32_t coldest_of_sample(bool spare_seen);
  void evict_to(std::int64_t n_extents, bool spare_seen);
  bool write_back(const std::vector<std::int32_t>& extents);

  std::int64_t blocks_per_extent_ = 1;
  std::size_t extent_bytes_ = 0;
  std::int64_t n_extents_ = 0, most_resident_ = 0;
  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::unique_ptr<std::atomic<std::uint32_t>[]> seen_;  // by extent: the period of its last use
  std::atomic<std::uint32_t> period_ = 1;               // layers

  mutable std::mutex mutex_;  // of all that follows
  std::vector<float> heat_;   // by extent: log2 of its uses, each times 2^(step / 8)
  std::vector<std::int32_t> resident_;
  std::vector<std::int32_t> place_;  // by extent: in resident_; -1: in the file alone, or never used
  std::vector<bool> written_;        // by extent: it was evicted before
  std::int64_t step_ = 0, evicted_ = 0, fetched_ = 0;
  std::uint64_t random_ = 1;
  bool failed_ = false;
};

}  // namespace mneme
