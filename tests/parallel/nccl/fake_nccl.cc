// A library with NCCL's functions over host memory, for ranks that are threads of one process. Built in several forms:
// FAKE_VERSION, FAKE_WITHOUT_BROADCAST, FAKE_INIT_FAILS, FAKE_ASYNC_ERROR.
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#endif

namespace {

struct Group {
  std::vector<const void*> from;
  int came = 0, round = 0;
};
struct Comm {
  int rank, size;
  std::string id;
};

std::mutex mutex;
std::condition_variable changed;
std::map<std::string, Group> groups;
int ids = 0;

void meet(Group& g, int size, std::unique_lock<std::mutex>& lock) {
  const int round = g.round;
  if (++g.came == size) {
    g.came = 0;
    ++g.round;
    changed.notify_all();
  }
  changed.wait(lock, [&] { return g.round != round; });
}

// `read` makes the rank's result of everybody's memory; nobody writes before all have read.
template <typename F>
int together(Comm* comm, const void* from, void* to, const F& read) {
  std::unique_lock lock(mutex);
  Group& g = groups[comm->id];
  g.from.resize(comm->size);
  g.from[comm->rank] = from;
  meet(g, comm->size, lock);
  const auto result = read(g.from);
  meet(g, comm->size, lock);
  std::memcpy(to, result.data(), result.size() * sizeof(result[0]));
  return 0;
}

}  // namespace

extern "C" {

struct FakeId {
  char bytes[128];
};

int ncclGetVersion(int* version) {
  *version = FAKE_VERSION;
  return 0;
}
int ncclGetUniqueId(FakeId* id) {
  const std::lock_guard lock(mutex);
  const std::string name = "fake " + std::to_string(++ids);
  std::memcpy(id->bytes, name.c_str(), name.size() + 1);
  return 0;
}
int ncclCommInitRank(void** comm, int size, FakeId id, int rank) {
#ifdef FAKE_INIT_FAILS
  if (rank == 1) return 2;
#endif
  *comm = new Comm{rank, size, id.bytes};
  return 0;
}
int ncclCommDestroy(void* comm) {
  delete static_cast<Comm*>(comm);
  return 0;
}
int ncclCommAbort(void* comm) {
  delete static_cast<Comm*>(comm);
  return 0;
}
int ncclCommGetAsyncError(void*, int* error) {
#ifdef FAKE_ASYNC_ERROR
  *error = 6;
#else
  *error = 0;
#endif
  return 0;
}
int ncclAllReduce(const void* from, void* to, std::size_t n, int, int, void* comm, void*) {
  auto* c = static_cast<Comm*>(comm);
  return together(c, from, to, [&](const std::vector<const void*>& all) {
    std::vector<float> sum(n, 0.0f);
    for (const void* other : all)
      for (std::size_t i = 0; i < n; ++i) sum[i] += static_cast<const float*>(other)[i];
    return sum;
  });
}
int ncclAllGather(const void* from, void* to, std::size_t n, int, void* comm, void*) {
  auto* c = static_cast<Comm*>(comm);
  return together(c, from, to, [&](const std::vector<const void*>& all) {
    std::vector<char> parts;
    for (const void* other : all)
      parts.insert(parts.end(), static_cast<const char*>(other), static_cast<const char*>(other) + n);
    return parts;
  });
}
int ncclSend(const void*, std::size_t, int, int, void*, void*) {
  return 0;
}
int ncclRecv(void*, std::size_t, int, int, void*, void*) {
  return 0;
}
#ifndef FAKE_WITHOUT_BROADCAST
int ncclBroadcast(const void* from, void* to, std::size_t n, int, int root, void* comm, void*) {
  auto* c = static_cast<Comm*>(comm);
  return together(c, from, to, [&](const std::vector<const void*>& all) {
    return std::vector<char>(static_cast<const char*>(all[root]), static_cast<const char*>(all[root]) + n);
  });
}
#endif
const char* ncclGetErrorString(int result) {
  return result == 2 ? "unhandled system error" : result == 6 ? "remote process exited" : "no error";
}
}
