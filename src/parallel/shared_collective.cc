#include "src/parallel/shared_collective.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <new>
#include <thread>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"

namespace mneme {
namespace {

constexpr std::uint32_t kMagic = 0x6d6e6d01;
// A rank's values of one call; longer ones go in pieces. 256 KiB: two buffers of 8 ranks stay in an L2 of 4 MiB.
constexpr std::size_t kBufferBytes = 256 << 10;
constexpr double kMaxPerNap = 0.1;  // seconds that count as waited: a stopped process (Ctrl-Z) has not waited
constexpr std::size_t kWhyBytes = 512;

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

// Not private to a process, as std::atomic's wait is.
void sleep_on(Word& word, std::uint32_t value, double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  const timespec nap{.tv_sec = whole, .tv_nsec = static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &nap, nullptr, 0);
}
void wake_all(Word& word) {
  word.fetch_add(1);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// True for a zombie too: a process that ended and was not waited for yet.
bool process_ended(std::int32_t pid) {
  if (kill(pid, 0) != 0) return errno == ESRCH;
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] == 'Z';
}

}  // namespace

struct SharedRegion::Layout {
  std::uint32_t magic = kMagic;
  std::int32_t size = 0;
  Word news;     // grows with every arrival
  Word aborted;  // 0, 1: why is being written, 2: it is there
  char why[kWhyBytes] = {};
  struct alignas(64) Rank {
    std::atomic<std::uint64_t> calls;  // that it has arrived at
    std::atomic<std::int32_t> pid;     // 0: not there yet
    Word gone;
    // The last two calls, and their bytes.
    std::uint32_t call[2];
    std::uint64_t bytes[2];
  } ranks[kMaxRanks];

  static std::size_t bytes_for(int size) { return sizeof(Layout) + 2 * kBufferBytes * static_cast<std::size_t>(size); }
  std::byte* buffer(int rank, std::uint64_t call) {
    return reinterpret_cast<std::byte*>(this + 1) + kBufferBytes * (2 * rank + call % 2);
  }
};

std::shared_ptr<SharedRegion> SharedRegion::make(int size) {
  if (size < 1 || size > kMaxRanks) fail(ErrorKind::kOption, "expected 1 to {} ranks, found {}", kMaxRanks, size);
  const std::size_t bytes = Layout::bytes_for(size);
  std::shared_ptr<SharedRegion> region(new SharedRegion);
  region->descriptor_ = memfd_create("mneme ranks", 0);
  if (region->descriptor_ < 0 || ftruncate(region->descriptor_, static_cast<off_t>(bytes)) != 0)
    fail(ErrorKind::kResource, "no memory for {} ranks to share: {}", size, std::strerror(errno));
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->descriptor_, 0);
  if (at == MAP_FAILED) fail(ErrorKind::kResource, "no memory for {} ranks to share: {}", size, std::strerror(errno));
  region->layout_ = new (at) Layout;
  region->layout_->size = size;
  return region;
}

std::shared_ptr<SharedRegion> SharedRegion::open(int descriptor) {
  struct stat info {};
  std::shared_ptr<SharedRegion> region(new SharedRegion);
  region->descriptor_ = descriptor;
  const bool has_layout = fstat(descriptor, &info) == 0 && info.st_size >= static_cast<off_t>(sizeof(Layout));
  void* at = has_layout ? mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ | PROT_WRITE, MAP_SHARED,
                               descriptor, 0)
                        : MAP_FAILED;
  if (at == MAP_FAILED) fail(ErrorKind::kDevice, "descriptor {} has no memory that ranks share", descriptor);
  region->layout_ = static_cast<Layout*>(at);
  const Layout& l = *region->layout_;
  const bool ours = l.magic == kMagic && l.size >= 1 && l.size <= kMaxRanks &&
                    info.st_size == static_cast<off_t>(Layout::bytes_for(l.size));
  if (!ours) {
    munmap(at, static_cast<std::size_t>(info.st_size));
    region->layout_ = nullptr;
    fail(ErrorKind::kDevice, "descriptor {} is of ranks of another build", descriptor);
  }
  return region;
}

SharedRegion::~SharedRegion() {
  if (layout_ != nullptr) munmap(layout_, Layout::bytes_for(layout_->size));
  if (descriptor_ >= 0) close(descriptor_);
}

void SharedRegion::expect_process(int rank, int pid) {
  layout_->ranks[rank].pid.store(pid);
}

int SharedRegion::size() const {
  return layout_->size;
}

void SharedRegion::abort(std::string_view why) noexcept {
  std::uint32_t none = 0;
  if (layout_->aborted.compare_exchange_strong(none, 1)) {
    const std::size_t n = std::min(why.size(), kWhyBytes - 1);
    std::memcpy(layout_->why, why.data(), n);
    layout_->why[n] = '\0';
    layout_->aborted.store(2);
  }
  wake_all(layout_->news);
}

SharedCollective::SharedCollective(std::shared_ptr<SharedRegion> region, int rank, Options options)
    : region_(std::move(region)), rank_(rank), options_(options) {
  MNEME_CHECK(rank >= 0 && rank < region_->size(), "rank {} of {}", rank, region_->size());
  region_->layout()->ranks[rank].pid.store(getpid());
}

SharedCollective::~SharedCollective() {
  region_->layout()->ranks[rank_].gone.store(1);
  wake_all(region_->layout()->news);
}

std::byte* SharedCollective::buffer(int rank) const {
  return region_->layout()->buffer(rank, calls_);
}

void SharedCollective::fail_aborted() const {
  // Whoever aborted writes a sentence at most.
  while (region_->layout()->aborted.load() == 1) std::this_thread::yield();
  throw RanksStopped(region_->layout()->why);
}

void SharedCollective::fail_all(const std::string& why) {
  region_->abort(why);
  fail_aborted();
}

bool SharedCollective::ended(int rank) const {
  const SharedRegion::Layout::Rank& other = region_->layout()->ranks[rank];
  const std::int32_t pid = other.pid.load();
  return other.gone.load() != 0 || (pid != 0 && pid != getpid() && process_ended(pid));
}

std::string SharedCollective::failure() {
  SharedRegion::Layout& l = *region_->layout();
  for (int r = 0; r < size() && l.aborted.load() == 0; ++r)
    if (r != rank_ && ended(r)) region_->abort(fmt::format("rank {} ended", r));
  if (l.aborted.load() == 0) return "";
  while (l.aborted.load() == 1) std::this_thread::yield();
  return l.why;
}

void SharedCollective::wait_for(int rank, Patience patience) {
  SharedRegion::Layout& l = *region_->layout();
  const std::atomic<std::uint64_t>& arrived = l.ranks[rank].calls;
  for (int i = 0; i < options_.looks && arrived.load(std::memory_order_acquire) < calls_; ++i) {
  }
  double waited = 0;
  while (true) {
    const std::uint32_t news = l.news.load();
    const bool gone = ended(rank);
    if (arrived.load(std::memory_order_acquire) >= calls_) return;
    if (l.aborted.load() != 0) fail_aborted();
    if (gone) fail_all(fmt::format("rank {} ended", rank));
    if (patience == Patience::kDeadline && waited > options_.seconds)
      fail_all(fmt::format("rank {} did not answer within {} s", rank, options_.seconds));
    const auto begin = std::chrono::steady_clock::now();
    sleep_on(l.news, news, options_.nap_seconds);
    waited += std::min(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), kMaxPerNap);
  }
}

// The rank's values are in its buffer; returns when those of all others are in theirs. They stay until the call after
// the next: a rank that arrives there has read what it wanted of this one.
void SharedCollective::arrive(Call call, std::size_t bytes, Patience patience) {
  SharedRegion::Layout& l = *region_->layout();
  if (l.aborted.load() != 0) fail_aborted();
  SharedRegion::Layout::Rank& mine = l.ranks[rank_];
  mine.call[calls_ % 2] = static_cast<std::uint32_t>(call);
  mine.bytes[calls_ % 2] = bytes;
  const std::uint64_t at = calls_++ % 2;
  mine.calls.store(calls_, std::memory_order_release);
  wake_all(l.news);
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    wait_for(r, patience);
    if (l.ranks[r].call[at] != mine.call[at] || l.ranks[r].bytes[at] != bytes)
      fail_all(fmt::format("ranks {} and {} do not make the same calls", rank_, r));
  }
  --calls_;  // buffer() is still this call's
}

void SharedCollective::all_reduce(std::span<float> values) {
  constexpr std::size_t kPiece = kBufferBytes / sizeof(float);
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    const std::span<float> piece = values.subspan(begin, std::min(kPiece, values.size() - begin));
    std::memcpy(buffer(rank_), piece.data(), piece.size_bytes());
    arrive(Call::kReduce, piece.size_bytes());
    std::memcpy(piece.data(), buffer(0), piece.size_bytes());
    for (int r = 1; r < size(); ++r) {
      const float* other = reinterpret_cast<const float*>(buffer(r));
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] += other[i];
    }
    ++calls_;
  }
}

void SharedCollective::all_gather(std::span<const std::byte> part, std::span<std::byte> out) {
  MNEME_CHECK(out.size() == part.size() * size(), "{} bytes from {} ranks of {}", out.size(), size(), part.size());
  for (std::size_t begin = 0; begin < part.size(); begin += kBufferBytes) {
    const std::size_t n = std::min(kBufferBytes, part.size() - begin);
    std::memcpy(buffer(rank_), part.data() + begin, n);
    arrive(Call::kGather, n);
    for (int r = 0; r < size(); ++r) std::memcpy(out.data() + part.size() * r + begin, buffer(r), n);
    ++calls_;
  }
}

void SharedCollective::broadcast(std::span<std::byte> bytes, int root, Patience patience) {
  MNEME_CHECK(root >= 0 && root < size(), "rank {} of {}", root, size());
  for (std::size_t begin = 0; begin < bytes.size(); begin += kBufferBytes) {
    const std::size_t n = std::min(kBufferBytes, bytes.size() - begin);
    if (rank_ == root) std::memcpy(buffer(root), bytes.data() + begin, n);
    arrive(Call::kBroadcast, n, patience);
    if (rank_ != root) std::memcpy(bytes.data() + begin, buffer(root), n);
    ++calls_;
  }
}

void SharedCollective::barrier(Patience patience) {
  arrive(Call::kBarrier, 0, patience);
  ++calls_;
}

}  // namespace mneme
