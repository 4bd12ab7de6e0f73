// Shared by the forms of SlotFile.
#pragma once

#include <memory>

#include "src/kv/disk/slot_file.h"

namespace mneme {

// A file descriptor that is closed with it.
class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd();
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Null: the build has no liburing, or the kernel has no rings for us.
std::unique_ptr<SlotFile> make_uring_file(std::unique_ptr<OwnedFd> fd, std::size_t slot_bytes);

}  // namespace mneme
