// SlotFile by io_uring: the kernel works on up to kDepth slots while we compute.
#include "src/kv/disk/slot_file_parts.h"

#ifdef MNEME_HAVE_LIBURING
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "src/base/check.h"

namespace mneme {
namespace {

constexpr unsigned kDepth = 32;

class UringSlotFile final : public SlotFile {
 public:
  UringSlotFile(std::unique_ptr<OwnedFd> fd, std::size_t slot_bytes, const io_uring& ring)
      : fd_(std::move(fd)), bytes_(slot_bytes), ring_(ring) {
    for (std::size_t i = 0; i < transfers_.size(); ++i) free_.push_back(i);
  }
  // Whoever owns the memory may free it afterwards.
  ~UringSlotFile() override {
    while (free_.size() < transfers_.size()) reap(true);
    io_uring_queue_exit(&ring_);
  }
  UringSlotFile(const UringSlotFile&) = delete;
  UringSlotFile& operator=(const UringSlotFile&) = delete;

  void read(std::uint64_t tag, std::int64_t slot, std::byte* to) override { begin(tag, slot, to, false); }
  void write(std::uint64_t tag, std::int64_t slot, const std::byte* from) override {
    begin(tag, slot, const_cast<std::byte*>(from), true);  // the interface of one struct for both
  }
  std::vector<Done> done(bool wait) override {
    const bool any = free_.size() < transfers_.size();
    reap(false);
    while (wait && any && done_.empty()) reap(true);
    return std::exchange(done_, {});
  }
  int depth() const override { return kDepth; }

 private:
  struct Transfer {
    std::uint64_t tag = 0;
    std::int64_t at = 0;  // in the file
    std::byte* memory = nullptr;
    std::size_t left = 0;
    bool writes = false;
  };

  void begin(std::uint64_t tag, std::int64_t slot, std::byte* memory, bool writes) {
    MNEME_CHECK(!free_.empty(), "{} transfers are in flight", kDepth);
    const std::size_t i = free_.back();
    free_.pop_back();
    transfers_[i] = {tag, slot * static_cast<std::int64_t>(bytes_), memory, bytes_, writes};
    submit(i);
  }

  void submit(std::size_t i) {
    const Transfer& t = transfers_[i];
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    MNEME_CHECK(sqe != nullptr, "the submission queue holds as many as may be in flight");
    const auto n = static_cast<unsigned>(std::min<std::size_t>(t.left, std::size_t{1} << 30));
    if (t.writes) {
      io_uring_prep_write(sqe, fd_->get(), t.memory, n, t.at);
    } else {
      io_uring_prep_read(sqe, fd_->get(), t.memory, n, t.at);
    }
    io_uring_sqe_set_data64(sqe, i);
    int result = -EINTR;
    while (result == -EINTR || result == -EAGAIN) result = io_uring_submit(&ring_);
    if (result < 0) finish(i, -result);
  }

  void finish(std::size_t i, int error) {
    done_.push_back({.tag = transfers_[i].tag, .error = error});
    free_.push_back(i);
  }

  void reap(bool wait) {
    io_uring_cqe* cqe = nullptr;
    while ((wait ? io_uring_wait_cqe(&ring_, &cqe) : io_uring_peek_cqe(&ring_, &cqe)) == 0) {
      wait = false;
      const auto i = static_cast<std::size_t>(io_uring_cqe_get_data64(cqe));
      const int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      Transfer& t = transfers_[i];
      if (result == -EINTR || result == -EAGAIN) {
        submit(i);
      } else if (result <= 0) {
        finish(i, result == 0 ? EIO : -result);  // 0: the file ends before the slot does
      } else {
        t.at += result;
        t.memory += result;
        t.left -= result;
        t.left == 0 ? finish(i, 0) : submit(i);  // a short transfer continues
      }
    }
  }

  std::unique_ptr<OwnedFd> fd_;
  std::size_t bytes_;
  io_uring ring_;
  std::array<Transfer, kDepth> transfers_;
  std::vector<std::size_t> free_;  // of transfers_
  std::vector<Done> done_;
};

}  // namespace

std::unique_ptr<SlotFile> make_uring_file(std::unique_ptr<OwnedFd> fd, std::size_t slot_bytes) {
  io_uring ring;
  if (io_uring_queue_init(kDepth, &ring, 0) != 0) return nullptr;
  return std::make_unique<UringSlotFile>(std::move(fd), slot_bytes, ring);
}

}  // namespace mneme
#else
namespace mneme {

std::unique_ptr<SlotFile> make_uring_file(std::unique_ptr<OwnedFd>, std::size_t) {
  return nullptr;
}

}  // namespace mneme
#endif
