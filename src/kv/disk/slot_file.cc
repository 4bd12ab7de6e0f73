#include "src/kv/disk/slot_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/kv/disk/slot_file_parts.h"

namespace mneme {
namespace {

// One after the other, done when it returns.
class PlainSlotFile final : public SlotFile {
 public:
  PlainSlotFile(std::unique_ptr<OwnedFd> fd, std::size_t slot_bytes) : fd_(std::move(fd)), bytes_(slot_bytes) {}

  void read(std::uint64_t tag, std::int64_t slot, std::byte* to) override {
    done_.push_back({.tag = tag, .error = transfer(slot, [&](std::size_t done, std::int64_t at) {
                                   return ::pread(fd_->get(), to + done, bytes_ - done, at);
                                 })});
  }
  void write(std::uint64_t tag, std::int64_t slot, const std::byte* from) override {
    done_.push_back({.tag = tag, .error = transfer(slot, [&](std::size_t done, std::int64_t at) {
                                   return ::pwrite(fd_->get(), from + done, bytes_ - done, at);
                                 })});
  }
  std::vector<Done> done(bool) override { return std::exchange(done_, {}); }
  int depth() const override { return 1 << 10; }

 private:
  template <typename Step>
  int transfer(std::int64_t slot, Step step) const {
    const std::int64_t begin = slot * static_cast<std::int64_t>(bytes_);
    for (std::size_t done = 0; done < bytes_;) {
      const ssize_t n = step(done, begin + static_cast<std::int64_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno;
      if (n == 0) return EIO;  // the file ends before the slot does
      done += n;
    }
    return 0;
  }

  std::unique_ptr<OwnedFd> fd_;
  std::size_t bytes_;
  std::vector<Done> done_;
};

}  // namespace

OwnedFd::~OwnedFd() {
  ::close(fd_);
}

std::unique_ptr<SlotFile> open_slot_file(const std::filesystem::path& path, std::size_t slot_bytes, DiskIo io) {
  MNEME_CHECK(slot_bytes > 0 && slot_bytes % SlotFile::kAlignment == 0, "slots of {} bytes", slot_bytes);
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  int fd = ::open(path.c_str(), kFlags | O_DIRECT, 0600);
  if (fd < 0 && errno == EINVAL) fd = ::open(path.c_str(), kFlags, 0600);
  if (fd < 0) fail(ErrorKind::kFile, "{}: cannot be opened: {}", path.string(), std::strerror(errno));
  auto owned = std::make_unique<OwnedFd>(fd);
  if (io != DiskIo::kPlain) {
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) fail(ErrorKind::kFile, "{}: {}", path.string(), std::strerror(errno));
    if (auto file = make_uring_file(std::make_unique<OwnedFd>(copy), slot_bytes)) return file;
    if (io == DiskIo::kUring) fail(ErrorKind::kUnsupported, "{}: io_uring is not there", path.string());
  }
  return std::make_unique<PlainSlotFile>(std::move(owned), slot_bytes);
}

}  // namespace mneme
