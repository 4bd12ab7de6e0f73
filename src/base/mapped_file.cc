#include "src/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/error.h"

namespace mneme {

MappedFile::MappedFile(const std::filesystem::path& path, Links links) {
  // Without O_NONBLOCK a FIFO without a writer would block the caller before it is refused.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::kRefused ? O_NOFOLLOW : 0);
  const int fd = ::open(path.c_str(), flags);
  if (fd < 0 && errno == ELOOP && links == Links::kRefused)
    fail(ErrorKind::kFile, "{}: expected a file, found a symbolic link", path.string());
  if (fd < 0) fail(ErrorKind::kFile, "{}: cannot be opened: {}", path.string(), std::strerror(errno));
  struct stat st {};
  if (::fstat(fd, &st) != 0) {
    const int saved = errno;
    ::close(fd);
    fail(ErrorKind::kFile, "{}: cannot be examined: {}", path.string(), std::strerror(saved));
  }
  if (!S_ISREG(st.st_mode)) {
    ::close(fd);
    fail(ErrorKind::kFile, "{}: expected a file, found {}", path.string(),
         S_ISDIR(st.st_mode) ? "a folder" : "something that is not a plain file");
  }
  size_ = st.st_size;
  if (size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int saved = errno;
    if (p == MAP_FAILED) {
      ::close(fd);
      fail(ErrorKind::kFile, "{}: cannot be mapped: {}", path.string(), std::strerror(saved));
    }
    data_ = static_cast<const std::byte*>(p);
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace mneme
