// Device memory that the ranks of one host write to each other's, by CUDA IPC: NVLink, or PCIe between GPUs that access
// each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/cuda/memory.h"
#include "src/parallel/collective.h"
#include "src/parallel/peer_protocol.h"

namespace mneme {

class PeerMemory {
 public:
  // Room for sums of `tiles` tiles; null where `why_not` says why on every rank: another number of ranks than 2, 4 or 8,
  // several hosts, GPUs that do not access each other, a first sum that does not come out right within 5 s.
  //
  // Requires  the rank's GPU is the thread's current device.
  // Errors    kResource: no device memory. Collective's.
  static std::unique_ptr<PeerMemory> open(Collective& ranks, std::int32_t tiles, std::string& why_not);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  const PeerBuffers& buffers() const { return buffers_; }
  int ranks() const { return ranks_; }
  // From any thread: kernels that wait for another rank end.
  void stop() noexcept { *stop_.as<volatile std::int32_t>() = 1; }

 private:
  PeerMemory(int rank, int ranks, std::int32_t tiles);
  bool works();

  int ranks_;
  DeviceBuffer packets_, epochs_;
  PinnedBuffer stop_;
  PeerBuffers buffers_;
  std::vector<void*> mapped_;
};

}  // namespace mneme
