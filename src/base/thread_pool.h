// One pool of pinned threads for everything the CPU computes. Fork and join cost about a microsecond while the workers
// are awake (they spin shortly before they sleep), which a decode step of a small model needs: it forks some fifty
// times.
//
// Threads   one caller at a time; a call from inside a worker aborts. Exceptions thrown by the work reach the caller
//           (the first one; the others are dropped).
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
  // n_threads >= 1 counts the caller, who is worker 0. Pinned threads take `cpus` in order, again from the first where
  // there are more threads; none given: those of the process's affinity mask.
  explicit ThreadPool(int n_threads, Pinning pinning = Pinning::kNone, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }

  // Calls fn(worker) once for every worker 0..size()-1 and returns when all are done.
  void run(FunctionRef<void(int worker)> fn);

  // Splits [0, n) into pieces of at most `grain` items, handed out in order to whoever is free.
  void parallel_for(std::int64_t n, std::int64_t grain,
                    FunctionRef<void(std::int64_t begin, std::int64_t end, int worker)> fn);

 private:
  struct State;
  void worker_loop(int worker);

  int n_threads_;
  std::unique_ptr<State> state_;
};

// CPUs that this thread may use (its affinity mask), ascending, at least one.
std::vector<int> affinity_cpus();
int available_cpus();

// Keeps this thread, and those it starts, to `cpus`. Best effort: a container may forbid it.
void restrict_to(std::span<const int> cpus);

}  // namespace mneme
