// A disk that is full, errs, and damages what it has, as often as it is told.
#pragma once

#include <cerrno>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/rng.h"
#include "src/kv/disk/slot_file.h"

namespace mneme {

struct DiskFaults {
  std::uint64_t write_errors = 0, read_errors = 0, damages = 0;  // of a hundred
  std::int64_t n_write_errors = 0, n_bad_reads = 0;              // so far
};

class FaultyDisk final : public SlotFile {
 public:
  FaultyDisk(std::unique_ptr<SlotFile> file, DiskFaults& faults, std::size_t slot_bytes)
      : file_(std::move(file)), faults_(faults), slot_bytes_(slot_bytes) {}

  void read(std::uint64_t tag, std::int64_t slot, std::byte* to) override {
    reads_[tag] = to;
    file_->read(tag, slot, to);
  }
  void write(std::uint64_t tag, std::int64_t slot, const std::byte* from) override {
    if (rng_.below(100) >= faults_.write_errors) return file_->write(tag, slot, from);
    ++faults_.n_write_errors;
    done_.push_back({.tag = tag, .error = ENOSPC});
  }
  std::vector<Done> done(bool wait) override {
    std::vector<Done> all = std::exchange(done_, {});
    for (Done& d : file_->done(wait && all.empty())) {
      if (const auto read = reads_.extract(d.tag); !read.empty()) fail(d, read.mapped());
      all.push_back(d);
    }
    return all;
  }
  int depth() const override { return file_->depth(); }

 private:
  void fail(Done& done, std::byte* bytes) {
    const bool errs = rng_.below(100) < faults_.read_errors, damages = rng_.below(100) < faults_.damages;
    if (errs) done.error = EIO;  // a short read too
    if (damages) bytes[rng_.below(slot_bytes_)] ^= std::byte{1};
    if (errs || damages) ++faults_.n_bad_reads;
  }

  std::unique_ptr<SlotFile> file_;
  DiskFaults& faults_;
  std::size_t slot_bytes_;
  Rng rng_{7};
  std::map<std::uint64_t, std::byte*> reads_;
  std::vector<Done> done_;
};

}  // namespace mneme
