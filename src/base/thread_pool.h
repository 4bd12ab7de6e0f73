// The one pool of pinned threads for all CPU compute.
//
// Fork and join cost about 1 us while the workers are awake (they spin before they sleep); a decode step of a small
// model forks some 50 times.
//
// Threads  One caller at a time. A call from inside a worker aborts. The first exception thrown by the work is rethrown
//          to the caller; later ones are dropped.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/function_ref.h"

namespace mneme {

enum class Pinning { kNone, kPinned };

class ThreadPool {
 public:
  // n_threads >= 1 includes the caller, which is worker 0. Pinned threads take `cpus` in order and wrap around where
  // there are more threads. An empty `cpus` means the process's affinity mask.
  explicit ThreadPool(int n_threads, Pinning pinning = Pinning::kNone, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }

  // Calls fn(worker) once for every worker 0..size()-1. Returns when all have returned.
  void run(FunctionRef<void(int worker)> fn);

  // Splits [0, n) into ranges of at most `grain` items. Workers take them in order.
  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t begin, std::int64_t end, int worker)> fn);

 private:
  struct State;
  void worker_loop(int worker);

  int n_threads_;
  std::unique_ptr<State> state_;
};

// CPUs of the calling thread's affinity mask, ascending, at least one.
std::vector<int> affinity_cpus();
int available_cpus();

// Sets the affinity mask of the calling thread, and of threads it starts, to `cpus`. Best effort: a container may
// forbid it.
void restrict_to(std::span<const int> cpus);

}  // namespace mneme
