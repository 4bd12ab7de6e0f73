#include "src/kv/disk/spill_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

constexpr float kNever = -1e30f;
constexpr std::int64_t kStepsOfHalf = 8;

// Runs of neighbours, as [first, end).
template <typename Use>
void for_runs(const std::vector<std::int32_t>& ascending, Use use) {
  for (std::size_t i = 0, j = 0; i < ascending.size(); i = j) {
    for (j = i + 1; j < ascending.size() && ascending[j] == ascending[j - 1] + 1;) ++j;
    use(std::int64_t{ascending[i]}, std::int64_t{ascending[j - 1]} + 1);
  }
}

}  // namespace

SpillMemory::SpillMemory(std::size_t block_bytes, std::int64_t n_blocks, const SpillOptions& options) {
  MNEME_CHECK(block_bytes > 0 && n_blocks >= 0 && options.resident_bytes >= 0, "{} blocks of {} bytes, {} in memory",
              n_blocks, block_bytes, options.resident_bytes);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  extent_bytes_ = std::lcm(block_bytes, page);
  blocks_per_extent_ = static_cast<std::int64_t>(extent_bytes_ / block_bytes);
  n_extents_ = (n_blocks + blocks_per_extent_ - 1) / blocks_per_extent_;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(extent_bytes_);
  if (n_extents_ > std::min<std::int64_t>(most, std::numeric_limits<std::int32_t>::max()))
    fail(ErrorKind::kResource, "{} blocks of {} bytes of KV cache: more than can be addressed", n_blocks, block_bytes);
  most_resident_ = std::max<std::int64_t>(options.resident_bytes / static_cast<std::int64_t>(extent_bytes_), 1);
  if (n_extents_ > 0) open(options.folder, n_extents_ * static_cast<std::int64_t>(extent_bytes_));
  seen_ = std::make_unique<std::atomic<std::uint32_t>[]>(n_extents_);
  heat_.assign(n_extents_, kNever);
  place_.assign(n_extents_, -1);
  written_.assign(n_extents_, false);
}

void SpillMemory::open(const std::filesystem::path& folder, std::int64_t bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::string path = (folder / "kv-spill-XXXXXX").string();
  fd_ = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd_ < 0)
    fail(ErrorKind::kFile, "{}: no file for the KV cache can be made: {}", folder.string(), std::strerror(errno));
  ::unlink(path.c_str());
  // The POSIX form would write every block where the file system cannot allocate them.
  int why = 0;
  do why = ::fallocate(fd_, 0, 0, bytes) == 0 ? 0 : errno;
  while (why == EINTR);
  if (why != 0) {
    ::close(std::exchange(fd_, -1));
    fail(ErrorKind::kFile, "{}: {} bytes of KV cache do not fit: {}", folder.string(), bytes, std::strerror(why));
  }
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (p == MAP_FAILED) {
    why = errno;
    ::close(std::exchange(fd_, -1));
    fail(ErrorKind::kResource, "cannot map {} bytes of KV cache: {}", bytes, std::strerror(why));
  }
  base_ = static_cast<std::byte*>(p);
  ::madvise(base_, bytes, MADV_RANDOM);  // neighbours are another head's, and use() asks for what is wanted
}

SpillMemory::~SpillMemory() {
  if (base_ != nullptr) ::munmap(base_, n_extents_ * extent_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

void SpillMemory::use(std::int64_t extent) {
  const std::lock_guard lock(mutex_);
  const float now = static_cast<float>(step_) / kStepsOfHalf, heat = heat_[extent];
  heat_[extent] = std::max(heat, now) + std::log2(1.0f + std::exp2(-std::abs(heat - now)));
  if (place_[extent] >= 0) return;
  place_[extent] = size32(resident_);
  resident_.push_back(static_cast<std::int32_t>(extent));
  if (written_[extent]) {
    // Begins to read it: whoever touches many has the disk read them while it touches the rest.
    ::madvise(base_ + extent * extent_bytes_, extent_bytes_, MADV_WILLNEED);
    fetched_ += static_cast<std::int64_t>(extent_bytes_);
  }
  const std::int64_t on_top = std::ssize(resident_) - most_resident_;
  if (on_top > most_resident_ / 2 + 16)
    evict_to(most_resident_, false);
  else if (on_top > most_resident_ / 4 + 8)
    evict_to(most_resident_, true);
}

// Heats within half a doubling are equal: what every step uses, and this one has not yet, is 0.13 behind.
bool SpillMemory::colder(std::int32_t a, std::int32_t b) const {
  const float difference = heat_[a] - heat_[b];
  return std::abs(difference) > 0.5f ? difference < 0 : a < b;
}

// -1: none was found that this layer has not used.
std::int32_t SpillMemory::coldest_of_sample(bool spare_seen) {
  constexpr int kSample = 16;
  const std::uint32_t now = period_.load(std::memory_order_relaxed);
  std::int32_t coldest = -1;
  for (int i = 0; i < kSample; ++i) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    const std::int32_t extent = resident_[(random_ >> 33) % resident_.size()];
    if (spare_seen && seen_[extent].load(std::memory_order_relaxed) == now) continue;
    if (coldest < 0 || colder(extent, coldest)) coldest = extent;
  }
  return coldest;
}

void SpillMemory::evict_to(std::int64_t n_extents, bool spare_seen) {
  if (failed_) return;
  std::vector<std::int32_t> victims;
  while (std::ssize(resident_) > n_extents) {
    const std::int32_t extent = coldest_of_sample(spare_seen);
    if (extent < 0) break;
    const std::int32_t last = resident_.back();
    resident_[place_[extent]] = last;
    place_[last] = place_[extent];
    resident_.pop_back();
    place_[extent] = -1;
    written_[extent] = true;
    victims.push_back(extent);
  }
  if (victims.empty()) return;
  std::sort(victims.begin(), victims.end());
  if (!write_back(victims)) {
    failed_ = true;
    return;
  }
  for_runs(victims, [&](std::int64_t first, std::int64_t end) {
    const std::size_t at = first * extent_bytes_, bytes = (end - first) * extent_bytes_;
    ::madvise(base_ + at, bytes, MADV_DONTNEED);
    ::posix_fadvise(fd_, static_cast<off_t>(at), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
    evicted_ += static_cast<std::int64_t>(bytes);
  });
}

// Writes what changed since the last time to the file: all writes begin, then all are awaited.
bool SpillMemory::write_back(const std::vector<std::int32_t>& extents) {
  bool ok = true;
  for (const unsigned flags :
       {SYNC_FILE_RANGE_WRITE, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER}) {
    for_runs(extents, [&](std::int64_t first, std::int64_t end) {
      const std::size_t at = first * extent_bytes_, bytes = (end - first) * extent_bytes_;
      ok = ok && ::sync_file_range(fd_, static_cast<off_t>(at), static_cast<off_t>(bytes), flags) == 0;
    });
  }
  return ok || (errno == ENOSYS && ::fdatasync(fd_) == 0);
}

void SpillMemory::end_layer() {
  const std::lock_guard lock(mutex_);
  period_.fetch_add(1, std::memory_order_relaxed);
  if (std::ssize(resident_) > most_resident_) evict_to(most_resident_, false);
}

void SpillMemory::end_step() {
  const std::lock_guard lock(mutex_);
  ++step_;
}

SpillMemory::Stats SpillMemory::stats() const {
  const std::lock_guard lock(mutex_);
  const auto bytes = static_cast<std::int64_t>(extent_bytes_);
  return {.resident_bytes = std::ssize(resident_) * bytes,
          .file_bytes = n_extents_ * bytes,
          .evicted_bytes = evicted_,
          .fetched_bytes = fetched_,
          .failed = failed_};
}

}  // namespace mneme
