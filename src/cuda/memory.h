// Device memory and page-locked, mapped host memory; copies between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "src/base/progress.h"
#include "src/cuda/stream.h"

namespace mneme {

// Address and size of memory with one owner, who frees it: a move leaves the source empty.
class OwnedMemory {
 public:
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 protected:
  OwnedMemory() = default;
  explicit OwnedMemory(std::size_t bytes) : size_(bytes) {}
  ~OwnedMemory() = default;
  OwnedMemory(OwnedMemory&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  OwnedMemory& operator=(OwnedMemory&& o) noexcept {
    data_ = std::exchange(o.data_, nullptr);
    size_ = std::exchange(o.size_, 0);
    return *this;
  }

  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// Owned device memory, not initialised.
class DeviceBuffer : public OwnedMemory {
 public:
  DeviceBuffer() = default;
  // Errors  kResource: not enough free memory; the message has `what`, the size and the free bytes.
  DeviceBuffer(std::size_t bytes, const char* what);
  ~DeviceBuffer() { free(); }
  DeviceBuffer(DeviceBuffer&& o) noexcept = default;
  DeviceBuffer& operator=(DeviceBuffer&& o) noexcept {
    free();
    OwnedMemory::operator=(std::move(o));
    return *this;
  }

 private:
  void free();
};
// Offsets of arrays that share one allocation. Each starts at a multiple of 256 bytes, which every vector load and bulk
// copy accepts.
class ArenaLayout {
 public:
  // `to` receives its address from assign(). Requires  `to` outlives this.
  template <typename T>
  void add(T*& to, std::size_t bytes) {
    pointers_.push_back({&to, total_});
    total_ += (bytes + kAlign - 1) / kAlign * kAlign;
  }
  std::size_t total() const { return total_; }  // bytes
  void assign(std::byte* base) const {
    for (const auto& [pointer, offset] : pointers_) {
      const std::byte* at = base + offset;
      std::memcpy(pointer, &at, sizeof(at));
    }
  }

 private:
  static constexpr std::size_t kAlign = 256;
  std::vector<std::pair<void*, std::size_t>> pointers_;  // address of a pointer, its offset
  std::size_t total_ = 0;
};

// Grows `buffer` to at least `bytes`. Content is lost, and the free synchronises with work that uses the old memory.
inline void grow(DeviceBuffer& buffer, std::size_t bytes, const char* what) {
  if (buffer.size() >= bytes) return;
  buffer = {};
  buffer = DeviceBuffer(bytes, what);
}

// Page-locked host memory, mapped: kernels read and write it in place.
class PinnedBuffer : public OwnedMemory {
 public:
  PinnedBuffer() = default;
  // Below 64 MiB: the driver's allocator. From 64 MiB: huge pages, touched by many threads, then registered, which is
  // eight times faster (docs/design/gather.md).
  //
  // Errors  kResource: not enough host memory, or the process may not lock it.
  explicit PinnedBuffer(std::size_t bytes, const ProgressFn& progress = {});
  // Memory for kernels that read small pieces of many GiB: managed memory that stays on the host, which the device maps
  // by larger pages than registered memory. 3,264 reads of 512 bytes out of 10 GiB take 40 us, of registered memory 72
  // within 512 MiB and 122 anywhere (docs/design/gather.md). The copy engine reaches 8 to 15 GB/s in place of 55: only
  // kernels and the host should copy. Registered memory where the device does not share managed memory with the host.
  //
  // Errors  kResource.
  static PinnedBuffer for_kernels(std::size_t bytes, const ProgressFn& progress = {});
  ~PinnedBuffer() { free(); }
  PinnedBuffer(PinnedBuffer&& o) noexcept
      : OwnedMemory(std::move(o)),
        mapped_(std::exchange(o.mapped_, nullptr)),
        reserved_(std::exchange(o.reserved_, 0)),
        managed_(std::exchange(o.managed_, false)) {}
  PinnedBuffer& operator=(PinnedBuffer&& o) noexcept {
    free();
    mapped_ = std::exchange(o.mapped_, nullptr);
    reserved_ = std::exchange(o.reserved_, 0);
    managed_ = std::exchange(o.managed_, false);
    OwnedMemory::operator=(std::move(o));
    return *this;
  }

  // Device address of the same memory.
  std::byte* device_data() const { return static_cast<std::byte*>(mapped_); }

 private:
  void free();
  bool manage(std::size_t bytes);
  void* mapped_ = nullptr;
  std::size_t reserved_ = 0;  // > 0: our own mapping, registered
  bool managed_ = false;
};

// Copies bytes between any two of host and device, ordered on `stream`. Async, except that pageable host memory blocks.
void copy_bytes(void* to, const void* from, std::size_t bytes, const Stream& stream);
// Copies n_rows rows of `bytes` bytes; pitches are in bytes.
void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
               std::size_t n_rows, const Stream& stream);
void set_bytes(void* to, int value, std::size_t bytes, const Stream& stream);

}  // namespace mneme
