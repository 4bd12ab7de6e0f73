#include "src/parallel/nccl/nccl_collective.h"

#include <span>

#include "src/base/error.h"

namespace mneme {

NcclCollective::NcclCollective(const NcclLibrary& library, Collective& ranks) : library_(library), ranks_(ranks) {
  expect_agreement(ranks, "version of NCCL", library.version());
  NcclId id;
  try {
    if (ranks.rank() == 0) library.expect(library.get_unique_id(&id), "ncclGetUniqueId");
    ranks.broadcast(std::as_writable_bytes(std::span(id.bytes)), 0);
    library.expect(library.comm_init_rank(&comm_, ranks.size(), id, ranks.rank()), "ncclCommInitRank");
    ranks.barrier();  // no rank continues before all have arrived
  } catch (const Error& e) {
    if (comm_ != nullptr) library.comm_abort(comm_);
    ranks.abort(e.what());
    throw;
  }
}

NcclCollective::~NcclCollective() {
  if (!aborted_.exchange(true)) library_.comm_destroy(comm_);
}

// After an abort there is no communicator any more.
void NcclCollective::call(const char* what, FunctionRef<int()> function) {
  if (aborted_.load()) fail(ErrorKind::kDevice, "{}: the ranks stopped", what);
  try {
    library_.expect(function(), what);
  } catch (const Error& e) {
    abort(e.what());
    throw;
  }
}

void NcclCollective::all_reduce(const float* mine, float* out, std::size_t n, NcclStream stream) {
  call("ncclAllReduce", [&] { return library_.all_reduce(mine, out, n, kNcclFloat32, kNcclSum, comm_, stream); });
}

void NcclCollective::all_gather(const void* part, void* out, std::size_t bytes, NcclStream stream) {
  call("ncclAllGather", [&] { return library_.all_gather(part, out, bytes, kNcclInt8, comm_, stream); });
}

void NcclCollective::broadcast(void* values, std::size_t bytes, int root, NcclStream stream) {
  call("ncclBroadcast", [&] { return library_.broadcast(values, values, bytes, kNcclInt8, root, comm_, stream); });
}

void NcclCollective::send(const void* values, std::size_t bytes, int to, NcclStream stream) {
  call("ncclSend", [&] { return library_.send(values, bytes, kNcclInt8, to, comm_, stream); });
}

void NcclCollective::receive(void* values, std::size_t bytes, int from, NcclStream stream) {
  call("ncclRecv", [&] { return library_.recv(values, bytes, kNcclInt8, from, comm_, stream); });
}

void NcclCollective::check() {
  int error = kNcclSuccess;
  call("ncclCommGetAsyncError", [&] { return library_.comm_get_async_error(comm_, &error); });
  call("a communicator of NCCL's", [&] { return error; });
}

void NcclCollective::abort(std::string_view why) noexcept {
  if (aborted_.exchange(true)) return;
  ranks_.abort(why);
  library_.comm_abort(comm_);
}

}  // namespace mneme
