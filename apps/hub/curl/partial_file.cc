#include "apps/hub/curl/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/hub/hub_cache.h"
#include "src/base/check.h"
#include "src/base/error.h"

namespace mneme::hub {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;

}  // namespace

PartialFile::PartialFile(std::filesystem::path path, DigestKind kind, std::int64_t size)
    : path_(std::move(path)), kind_(kind), size_(size), digest_(std::make_unique<Digest>(kind, size)) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_io("opening");
  take_up();
}

PartialFile::~PartialFile() {
  if (fd_ >= 0) ::close(fd_);
}

void PartialFile::take_up() {
  struct stat there {};
  if (::fstat(fd_, &there) != 0) fail_io("opening");
  if (there.st_size > size_) return restart();
  std::vector<std::byte> buffer(there.st_size > 0 ? kReadBytes : 0);
  while (offset_ < there.st_size) {
    const ssize_t n = ::pread(fd_, buffer.data(), buffer.size(), static_cast<off_t>(offset_));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_io("reading");
    digest_->update(std::span(buffer).first(n));
    offset_ += n;
  }
}

void PartialFile::append(std::span<const std::byte> bytes) {
  MNEME_CHECK(std::ssize(bytes) <= size_ - offset_, "{} bytes at {} of {}", bytes.size(), offset_, size_);
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_io("writing");
    digest_->update(bytes.first(n));
    offset_ += n;
    bytes = bytes.subspan(n);
  }
}

void PartialFile::restart() {
  if (::ftruncate(fd_, 0) != 0) fail_io("truncating");
  offset_ = 0;
  digest_ = std::make_unique<Digest>(kind_, size_);
}

void PartialFile::commit(const std::filesystem::path& name) {
  if (::fsync(fd_) != 0) fail_io("writing to the disk");
  if (::rename(path_.c_str(), name.c_str()) != 0) fail_io("renaming the finished file");
}

void PartialFile::discard() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void PartialFile::fail_io(const char* doing) const {
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT) {
    expect_room(path_.parent_path(), size_ - offset_, path_.filename().string());
    fail(ErrorKind::kFile, "{}: {} failed after {} of {} bytes: {}", path_.string(), doing, offset_, size_,
         std::strerror(error));
  }
  fail(ErrorKind::kFile, "{}: {} failed: {}", path_.string(), doing, std::strerror(error));
}

}  // namespace mneme::hub
