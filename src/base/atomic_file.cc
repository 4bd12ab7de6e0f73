#include "src/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBuffer = std::size_t{1} << 20;

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// The target of a link that is followed gets the new content.
fs::path target_of(const fs::path& path, Links links) {
  std::error_code error;
  if (links == Links::kRefused || !fs::is_symlink(path, error)) return path;
  fs::path target = fs::weakly_canonical(path, error);
  if (error) fail(ErrorKind::kFile, "{}: the link cannot be followed: {}", path.string(), error.message());
  return target;
}

}  // namespace

void expect_writable(const fs::path& given, Links links) {
  const fs::path path = target_of(given, links);
  if (!path.has_filename()) fail(ErrorKind::kFile, "\"{}\": expected the name of a file", path.string());
  struct stat there {};
  const int found = links == Links::kRefused ? ::lstat(path.c_str(), &there) : ::stat(path.c_str(), &there);
  if (found == 0 && !S_ISREG(there.st_mode)) {
    fail(ErrorKind::kFile, "{}: cannot be written: {} is there", path.string(),
         S_ISDIR(there.st_mode) ? "a folder" : "something that is not a plain file");
  }
  if (::access(folder_of(path).c_str(), W_OK | X_OK) != 0) {
    fail(ErrorKind::kFile, "{}: cannot be written: folder {}: {}", path.string(), folder_of(path).string(),
         std::strerror(errno));
  }
}

// The name that commit() replaces is never followed, so a link that appears meanwhile is replaced, not its target.
AtomicFile::AtomicFile(const fs::path& path, Links links) : path_(target_of(path, links)) {
  expect_writable(path_, links);
  temporary_ = (folder_of(path_) / ("." + path_.filename().string() + ".XXXXXX")).string();
  // Without a name until commit(): a process that is killed leaves nothing behind.
  fd_ = ::open(folder_of(path_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  named_ = fd_ < 0;
  if (named_) fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);  // a file system that has no nameless files
  if (fd_ < 0) {
    fail(ErrorKind::kFile, "{}: no file can be made in its folder: {}", path_.string(), std::strerror(errno));
  }
  buffer_.reserve(kBuffer);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (named_) ::unlink(temporary_.c_str());
}

// A link cannot replace a file, a rename can: the file gets a temporary name first. A process that is killed between the
// two leaves that name.
void AtomicFile::give_name() {
  const std::string open_file = "/proc/self/fd/" + std::to_string(fd_);
  const std::string pattern = temporary_;
  for (int attempt = 0; attempt < 100; ++attempt) {
    // mkostemp() finds a free name and creates a file, which is removed before linking.
    temporary_ = pattern;
    const int placeholder = ::mkostemp(temporary_.data(), O_CLOEXEC);
    if (placeholder < 0) fail_io("naming the finished file");
    ::close(placeholder);
    ::unlink(temporary_.c_str());
    if (::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      named_ = true;
      return;
    }
    if (errno != EEXIST) break;
  }
  fail_io("naming the finished file");
}

void AtomicFile::fail_io(const char* doing) const {
  fail(ErrorKind::kFile, "{}: {} failed: {}", path_.string(), doing, std::strerror(errno));
}

void AtomicFile::write_all(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_io("writing");
    offset += n;
    bytes = bytes.subspan(n);
  }
}

void AtomicFile::flush() {
  write_all(written_, buffer_);
  written_ += buffer_.size();
  buffer_.clear();
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBuffer) flush();
  if (bytes.size() > kBuffer) {
    write_all(written_, bytes);
    written_ += bytes.size();
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  MNEME_CHECK(offset <= size() && bytes.size() <= size() - offset, "{} bytes at {} of {}", bytes.size(), offset,
              size());
  flush();
  write_all(offset, bytes);
}

void AtomicFile::commit() {
  MNEME_CHECK(fd_ >= 0, "{} was committed before", path_.string());
  flush();
  if (::fsync(fd_) != 0) fail_io("writing to the disk");
  if (!named_) give_name();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("renaming the finished file");
  ::close(std::exchange(fd_, -1));
  // The rename, too, must survive a power cut.
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail_io("opening its folder");
  const bool synced = ::fsync(folder) == 0 || errno == EINVAL;  // some file systems cannot sync a folder
  const int error = errno;
  ::close(folder);
  errno = error;
  if (!synced) fail_io("writing its folder to the disk");
}

}  // namespace mneme
