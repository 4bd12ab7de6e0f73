// Memory of a pool's blocks that the device reads and writes: its own, or page-locked memory of the host.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "src/base/progress.h"
#include "src/cache/page_pool.h"
#include "src/device/memory.h"

namespace mneme {

class CudaBlocks final : public BlockMemory {
 public:
  // Errors  kResource.
  static std::unique_ptr<CudaBlocks> on_device(std::size_t bytes, const Stream& stream) {
    return std::unique_ptr<CudaBlocks>(new CudaBlocks(DeviceBuffer(bytes, "keys and values"), {}, bytes, stream));
  }
  static std::unique_ptr<CudaBlocks> on_host(std::size_t bytes, const Stream& stream, const ProgressFn& progress) {
    return std::unique_ptr<CudaBlocks>(new CudaBlocks({}, PinnedBuffer(bytes, progress), bytes, stream));
  }

  // By the device's address.
  std::byte* base() const override { return device_.size() > 0 ? device_.data() : host_.device_data(); }
  bool in_host_memory() const override { return host_.size() > 0; }
  std::size_t bytes() const { return bytes_; }
  void copy(std::byte* to, const std::byte* from, std::size_t n) override { copy_bytes(to, from, n, stream_); }
  void read(std::byte* to_host, const std::byte* from, std::size_t n) override {
    copy_bytes(to_host, from, n, stream_);
    stream_.synchronize();
  }
  void write(std::byte* to, const std::byte* from_host, std::size_t n) override {
    copy_bytes(to, from_host, n, stream_);
    stream_.synchronize();
  }

 private:
  CudaBlocks(DeviceBuffer device, PinnedBuffer host, std::size_t bytes, const Stream& stream)
      : device_(std::move(device)), host_(std::move(host)), bytes_(bytes), stream_(stream) {}

  DeviceBuffer device_;
  PinnedBuffer host_;
  std::size_t bytes_;
  const Stream& stream_;
};

}  // namespace mneme
