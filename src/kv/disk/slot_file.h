// A file of slots of one size, many of them read and written at once.
//
// Threads  one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace mneme {

// How a file is read and written: kAuto takes io_uring where the build has liburing and the kernel allows it.
enum class DiskIo : std::uint8_t { kAuto, kPlain, kUring };

class SlotFile {
 public:
  static constexpr std::size_t kAlignment = 4096;  // of memory and of slot sizes, for O_DIRECT

  virtual ~SlotFile() = default;

  // Begins to transfer a slot. The memory is the caller's until done() returns `tag`.
  //
  // Requires  memory aligned to kAlignment; fewer than depth() transfers in flight.
  virtual void read(std::uint64_t tag, std::int64_t slot, std::byte* to) = 0;
  virtual void write(std::uint64_t tag, std::int64_t slot, const std::byte* from) = 0;

  struct Done {
    std::uint64_t tag = 0;
    int error = 0;  // errno; 0: all bytes of the slot were transferred
  };
  // Transfers that ended since the last call, in any order; with `wait`, at least one where any is in flight.
  virtual std::vector<Done> done(bool wait) = 0;
  virtual int depth() const = 0;
};

// Opens or makes a file that only its owner may read. Past the page cache (O_DIRECT) where the file system can.
//
// Requires  slot_bytes a multiple of SlotFile::kAlignment.
// Errors    kFile: it cannot be opened. kUnsupported: kUring, and there is none.
std::unique_ptr<SlotFile> open_slot_file(const std::filesystem::path& path, std::size_t slot_bytes,
                                         DiskIo io = DiskIo::kAuto);

}  // namespace mneme
