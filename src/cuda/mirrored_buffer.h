// Device memory with a page-locked copy of it on the host.
#pragma once

#include <cstddef>

#include "src/cuda/memory.h"

namespace mneme {

struct MirroredBuffer {
  DeviceBuffer device;
  PinnedBuffer host;

  std::size_t size() const { return device.size(); }
  // Both to at least `bytes`, as grow() of memory.h.
  void grow(std::size_t bytes, const char* what) {
    mneme::grow(device, bytes, what);
    if (host.size() < bytes) host = PinnedBuffer(bytes);
  }
  // The first `bytes`, ordered on `stream`.
  void send(std::size_t bytes, const Stream& stream) { copy_bytes(device.data(), host.data(), bytes, stream); }
  void fetch(std::size_t bytes, const Stream& stream) { copy_bytes(host.data(), device.data(), bytes, stream); }
};

}  // namespace mneme
