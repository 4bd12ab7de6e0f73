#include "tests/disk_calls.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

namespace mneme {
namespace {

using Inode = std::pair<dev_t, ino_t>;

struct Calls {
  std::mutex mutex;
  std::set<Inode> flushed;
  std::vector<NamedFile> named;
};

Calls& calls() {
  static Calls all;
  return all;
}

int flush(long number, int fd) {
  struct stat info {};
  const auto result = static_cast<int>(::syscall(number, fd));
  if (result == 0 && ::fstat(fd, &info) == 0) {
    const std::lock_guard lock(calls().mutex);
    calls().flushed.insert({info.st_dev, info.st_ino});
  }
  return result;
}

}  // namespace

std::vector<NamedFile> take_named_files() {
  const std::lock_guard lock(calls().mutex);
  return std::exchange(calls().named, {});
}

}  // namespace mneme

// These stand before the C library's.
extern "C" int fsync(int fd) {
  return mneme::flush(SYS_fsync, fd);
}
extern "C" int fdatasync(int fd) {
  return mneme::flush(SYS_fdatasync, fd);
}
extern "C" int rename(const char* from, const char* to) noexcept {
  struct stat info {};
  const bool there = ::stat(from, &info) == 0;
  const auto result = static_cast<int>(::syscall(SYS_rename, from, to));
  if (result == 0 && there) {
    mneme::Calls& all = mneme::calls();
    const std::lock_guard lock(all.mutex);
    all.named.push_back({.name = to, .flushed = all.flushed.erase({info.st_dev, info.st_ino}) > 0});
  }
  return result;
}
