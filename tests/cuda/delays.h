// What tests put beside the work of a step to show that its results do not depend on timing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"
#include "src/cuda/memory.h"
#include "src/cuda/stream.h"

namespace mneme {

// Spins for `microseconds`.   Async  enqueues.
void wait_cuda(std::int32_t microseconds, const CudaContext& context);

// Keeps the link from host memory busy with copies of its own, so that fetches of kernels take longer.
class SlowLink {
 public:
  SlowLink() : from_(kBytes), to_(kBytes, "copies of a busy link"), stream_(Stream::make()) {}
  // Enqueues copies of a millisecond or more.
  void keep_busy() { copy_bytes(to_.data(), from_.data(), kBytes, stream_); }

 private:
  static constexpr std::size_t kBytes = std::size_t{64} << 20;
  PinnedBuffer from_;
  DeviceBuffer to_;
  Stream stream_;
};

}  // namespace mneme
