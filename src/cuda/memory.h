// Memory of the device, and memory of the host that the device reads and writes at full speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "src/base/progress.h"
#include "src/device/stream.h"

namespace mneme {

// Device memory. Not initialised.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Errors  kResource: not so much is free; the message has both numbers, and `what` it was for.
  DeviceBuffer(std::size_t bytes, const char* what);
  ~DeviceBuffer() { free(); }
  DeviceBuffer(DeviceBuffer&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& o) noexcept {
    free();
    data_ = std::exchange(o.data_, nullptr);
    size_ = std::exchange(o.size_, 0);
    return *this;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void free();
  void* data_ = nullptr;
  std::size_t size_ = 0;
};
// Makes room where there is less; what was in it is lost, and freeing waits for whatever reads that.
inline void grow(DeviceBuffer& buffer, std::size_t bytes, const char* what) {
  if (buffer.size() >= bytes) return;
  buffer = {};
  buffer = DeviceBuffer(bytes, what);
}

// Page-locked host memory, mapped: the device may read and write it where it lies.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  // Small: by the driver's allocator. From 64 MiB: huge pages, touched by many threads, then registered, which is eight
  // times faster (docs/cuda.md).
  //
  // Errors  kResource: the host has not so much memory, or may not lock it.
  explicit PinnedBuffer(std::size_t bytes, const ProgressFn& progress = {});
  ~PinnedBuffer() { free(); }
  PinnedBuffer(PinnedBuffer&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)),
        mapped_(std::exchange(o.mapped_, nullptr)),
        size_(std::exchange(o.size_, 0)),
        reserved_(std::exchange(o.reserved_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& o) noexcept {
    free();
    data_ = std::exchange(o.data_, nullptr);
    mapped_ = std::exchange(o.mapped_, nullptr);
    size_ = std::exchange(o.size_, 0);
    reserved_ = std::exchange(o.reserved_, 0);
    return *this;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  // The same memory by the device's address.
  std::byte* device_data() const { return static_cast<std::byte*>(mapped_); }
  std::size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void free();
  void* data_ = nullptr;
  void* mapped_ = nullptr;
  std::size_t size_ = 0, reserved_ = 0;  // reserved_ > 0: our own mapping, registered
};

// Bytes between any two places, host or device, in the order of `stream`. Pageable host memory makes it wait.
void copy_bytes(void* to, const void* from, std::size_t bytes, const Stream& stream);
// Many of them in one call.
struct CopyRequest {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};
void copy_batch(std::span<const CopyRequest> copies, const Stream& stream);
// n_rows of `bytes` each, pitches apart.
void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
               std::size_t n_rows, const Stream& stream);
void set_bytes(void* to, int value, std::size_t bytes, const Stream& stream);

}  // namespace mneme
