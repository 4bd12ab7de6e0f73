// What the ranks of a model exchange within a step on their GPUs. Calls enqueue on the step's one stream and can be
// captured; every rank enqueues the same calls in the same order.
//
//   NCCL       ncclAllReduce, ncclAllGather, ncclBroadcast, ncclSend and ncclRecv; one process a GPU. The reference.
//   by host    a copy to page-locked memory, a host function that calls the processes' own Collective, a copy back. Slow;
//              ranks may share a GPU, so it is what tests run on one card.
//   over peers sums of few rows by a kernel that writes to the other ranks' memory (peer_protocol.h), of many by one that
//              reads from it, where there are two ranks; all else by one of the two above.
//
// Failure  a rank that ends or does not come while a step runs aborts the step on all ranks: nothing waits for ever, and
//          end_step() throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "src/cuda/context.h"
#include "src/ops/norm_rope/pointwise_cuda.h"
#include "src/parallel/collective.h"

namespace mneme {

class DeviceCollective {
 public:
  virtual ~DeviceCollective() = default;

  // The processes' own. Requires  no step is running.
  virtual Collective& ranks() const = 0;
  virtual std::string_view form() const = 0;  // "nccl", "host", "peers"
  // out [n] f32, the sum of each rank's `mine` [n]; they may be the same.
  virtual void all_reduce(const float* mine, float* out, std::size_t n, const CudaContext& context) = 0;

  // residual [n, hidden] f32 += the sum of each rank's rows [n, hidden], which are lost. With out.x_next the next norm
  // starts here, as in embed_cuda, but that `sums` are [n, row_parts(n, hidden)].
  virtual void add_rows(float* rows, std::int32_t n, std::int32_t hidden, const EmbedOutput& out,
                        const CudaContext& context);
  virtual std::int32_t row_parts(std::int32_t n, std::int32_t hidden) const;
  // Whether add_rows() without a norm is a single launch; else it is all_reduce() and a kernel.
  virtual bool adds_in_one(std::int32_t n, std::int32_t hidden) const;
  // Where a GEMM writes rows that add_rows() then takes without a copy; null: anywhere.
  virtual float* own_rows() const { return nullptr; }
  // out [size, n] from part [n] of each rank, f32.
  virtual void all_gather(const float* part, float* out, std::size_t n, const CudaContext& context) = 0;

  // [n] f32 of `root`.
  virtual void broadcast(float* values, std::size_t n, int root, const CudaContext& context) = 0;
  // [n] f32 of rank `from` to the rank after it. Every rank calls it; to others `values` is scratch.
  virtual void hand_on(float* values, std::size_t n, int from, const CudaContext& context) = 0;

  // Around everything of a step, the host's wait for it included.
  virtual void begin_step() = 0;
  // Errors  RanksStopped: the step is worth nothing.
  virtual void end_step() = 0;
};

// Requires  the rank's GPU is the thread's current device; `ranks` outlives the object.
// Errors    kDevice: no NCCL, or not the same on all ranks.
std::unique_ptr<DeviceCollective> nccl_device_collective(Collective& ranks, double step_seconds = 20);
// most_bytes: of one call's result.
std::unique_ptr<DeviceCollective> host_device_collective(Collective& ranks, std::size_t most_bytes);
// Limits of sums over peers, in bytes.
struct PeerLimits {
  std::size_t packets = std::size_t{2} << 20;  // that a rank writes to others
  std::size_t rows = 0;                        // of own_rows(), of two ranks
};
// `rest` but for sums within the limits. Where ranks cannot access each other's memory, `rest`, and `why_not` says why.
//
// Errors  kResource: no device memory.
std::unique_ptr<DeviceCollective> peer_device_collective(std::unique_ptr<DeviceCollective> rest,
                                                         const PeerLimits& limits, std::string& why_not,
                                                         double step_seconds = 20);

// NCCL, with sums over peers where the GPUs can (MNEME_RANKS_NO_PEERS: never), but for ranks that share a GPU (MNEME_RANKS_SHARE_GPU, for tests).
std::unique_ptr<DeviceCollective> make_device_collective(Collective& ranks, std::size_t most_bytes);

}  // namespace mneme
