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

// How much ranks sum at once.
struct PeerRoom {
  std::int32_t tiles = 0;      // by packets
  std::size_t rows_bytes = 0;  // by two ranks that read each other's rows
};

class PeerMemory {
 public:
  // Null where `why_not` says why on every rank: another number of ranks than 2, 4 or 8,
  // several hosts, GPUs that do not access each other, a first sum that does not come out right within 5 s.
  //
  // Requires  the rank's GPU is the thread's current device.
  // Errors    kResource: no device memory. Collective's.
  static std::unique_ptr<PeerMemory> open(Collective& ranks, const PeerRoom& room, std::string& why_not);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  const PeerBuffers& buffers() const { return buffers_; }
  // Requires  two ranks.
  const PeerExchange& rows() const { return rows_; }
  float* own_rows() const { return own_rows_; }  // [rows_bytes()]
  std::size_t rows_bytes() const { return rows_bytes_; }
  int ranks() const { return ranks_; }
  // From any thread: kernels that wait for another rank end.
  void stop() noexcept { *stop_.as<volatile std::int32_t>() = 1; }

 private:
  PeerMemory(int rank, int ranks, const PeerRoom& room);
  void take(int rank, std::byte* memory);
  bool works();

  int ranks_;
  std::size_t packet_bytes_, rows_bytes_;
  DeviceBuffer shown_, epochs_;  // shown: packets, flags, rows
  PinnedBuffer stop_;
  PeerBuffers buffers_;
  PeerExchange rows_;
  float* own_rows_ = nullptr;
  std::vector<void*> mapped_;
};

}  // namespace mneme
