// A rank's NCCL communicator. Values are on its GPU; calls enqueue on a stream and can be captured into a graph.
//
// Bootstrap  rank 0 makes an id and sends it to the others by the processes' own Collective, which also compares what
//            the ranks must have in common.
// Failure    check() is called by a watchdog while steps run: an error of the communicator, or of another rank, aborts it;
//            kernels that wait for the other ranks then end.
// Threads    one at a time; check() and abort() from any.
#pragma once

#include <atomic>
#include <cstddef>
#include <string_view>

#include "src/base/function_ref.h"
#include "src/parallel/collective.h"
#include "src/parallel/nccl/nccl_library.h"

namespace mneme {

class NcclCollective {
 public:
  // Requires  the GPU of this rank is the thread's current device; `library` and `ranks` outlive the object.
  // Errors    kDevice: ranks with different versions of NCCL; NCCL's own, in its words.
  NcclCollective(const NcclLibrary& library, Collective& ranks);
  ~NcclCollective();
  NcclCollective(const NcclCollective&) = delete;
  NcclCollective& operator=(const NcclCollective&) = delete;

  int rank() const { return ranks_.rank(); }
  int size() const { return ranks_.size(); }

  // [n] f32 on the device; `mine` may be `out`. Async: on `stream`. The order of the sum is NCCL's.
  void all_reduce(const float* mine, float* out, std::size_t n, NcclStream stream);
  // [size, n] from [n] bytes of each rank. Async.
  void all_gather(const void* part, void* out, std::size_t bytes, NcclStream stream);
  void broadcast(void* values, std::size_t bytes, int root, NcclStream stream);

  // [bytes] to, and from, one other rank, which makes the other call. Async.
  void send(const void* values, std::size_t bytes, int to, NcclStream stream);
  void receive(void* values, std::size_t bytes, int from, NcclStream stream);

  // Errors  kDevice: something failed; the communicator is aborted on this rank, and `ranks` for all.
  void check();
  void abort(std::string_view why) noexcept;

 private:
  void call(const char* what, FunctionRef<int()> function);

  const NcclLibrary& library_;
  Collective& ranks_;
  NcclComm comm_ = nullptr;
  std::atomic<bool> aborted_ = false;
};

}  // namespace mneme
