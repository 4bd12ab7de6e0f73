// What the ranks of a model exchange within a step on their GPUs. Calls enqueue on the step's one stream and can be
// captured; every rank enqueues the same calls in the same order.
//
//   NCCL       ncclAllReduce, ncclAllGather, ncclBroadcast, ncclSend and ncclRecv; one process a GPU. The reference for
//              forms to come.
//   by host    a copy to page-locked memory, a host function that calls the processes' own Collective, a copy back. Slow;
//              ranks may share a GPU, so it is what tests run on one card.
//
// Failure  a rank that ends or does not come while a step runs aborts the step on all ranks: nothing waits for ever, and
//          end_step() throws.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "src/cuda/context.h"
#include "src/parallel/collective.h"

namespace mneme {

class DeviceCollective {
 public:
  virtual ~DeviceCollective() = default;

  // The processes' own. Requires  no step is running.
  virtual Collective& ranks() const = 0;
  virtual std::string_view form() const = 0;  // "nccl", "host"
  // [n] f32 in place.
  virtual void all_reduce(float* values, std::size_t n, const CudaContext& context) = 0;
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

// NCCL, but for ranks that share a GPU (MNEME_RANKS_SHARE_GPU, for tests).
std::unique_ptr<DeviceCollective> make_device_collective(Collective& ranks, std::size_t most_bytes);

}  // namespace mneme
