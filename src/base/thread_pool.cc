#include "src/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "src/base/check.h"
#include "src/base/size32.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mneme {
namespace {

// Spins before a waiting thread sleeps: about 250 us. That is longer than the gaps between the kernels of one step, and
// longer than the server's thread holds a worker's core to send a token. A worker that sleeps instead loses its core,
// on a busy machine for a whole time slice (a streamed answer lost 16 % with 50 us).
constexpr int kSpins = 20000;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void pin_to(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof(set), &set);  // best effort: a container may forbid it
}

thread_local bool t_in_work = false;

struct InWork {
  InWork() { t_in_work = true; }
  ~InWork() { t_in_work = false; }  // also reached by exceptions
};

}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> threads;
  std::atomic<std::uint32_t> round{0};  // incremented for every run(); workers wait for it to change
  std::atomic<int> left{0};             // workers that have not finished the round
  std::atomic<bool> stop{false};
  const FunctionRef<void(int)>* work = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

  void record_error() {
    std::lock_guard lock(error_mutex);
    if (!error) error = std::current_exception();
  }
};

ThreadPool::ThreadPool(int n_threads, Pinning pinning, std::span<const int> given)
    : n_threads_(n_threads), state_(std::make_unique<State>()) {
  MNEME_CHECK(n_threads >= 1, "a thread pool needs at least one thread, got {}", n_threads);
  const std::vector<int> cpus = given.empty() ? affinity_cpus() : std::vector<int>(given.begin(), given.end());
  for (int w = 1; w < n_threads; ++w) {
    state_->threads.emplace_back([this, w] { worker_loop(w); });
    if (pinning == Pinning::kPinned) pin_to(state_->threads.back().native_handle(), cpus[w % cpus.size()]);
  }
  if (pinning == Pinning::kPinned && n_threads > 1) pin_to(pthread_self(), cpus[0]);
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_relaxed);
  state_->round.fetch_add(1, std::memory_order_release);
  state_->round.notify_all();
  for (std::thread& t : state_->threads) t.join();
}

void ThreadPool::worker_loop(int worker) {
  State& s = *state_;
  std::uint32_t seen = 0;
  for (;;) {
    std::uint32_t now = s.round.load(std::memory_order_acquire);
    for (int spin = 0; now == seen && spin < kSpins; ++spin) {
      relax();
      now = s.round.load(std::memory_order_acquire);
    }
    while (now == seen) {
      s.round.wait(seen, std::memory_order_acquire);
      now = s.round.load(std::memory_order_acquire);
    }
    seen = now;
    if (s.stop.load(std::memory_order_relaxed)) return;
    t_in_work = true;
    try {
      (*s.work)(worker);
    } catch (...) {
      s.record_error();
    }
    t_in_work = false;
    if (s.left.fetch_sub(1, std::memory_order_acq_rel) == 1) s.left.notify_one();
  }
}

void ThreadPool::run(FunctionRef<void(int)> fn) {
  MNEME_CHECK(!t_in_work, "a thread pool cannot be used from inside its own work");
  State& s = *state_;
  if (n_threads_ > 1) {
    s.work = &fn;
    s.left.store(n_threads_ - 1, std::memory_order_relaxed);
    s.round.fetch_add(1, std::memory_order_release);
    s.round.notify_all();
  }
  t_in_work = true;
  try {
    fn(0);
  } catch (...) {
    s.record_error();
  }
  t_in_work = false;
  if (n_threads_ > 1) {
    int left = s.left.load(std::memory_order_acquire);
    for (int spin = 0; left != 0 && spin < kSpins; ++spin) {
      relax();
      left = s.left.load(std::memory_order_acquire);
    }
    while (left != 0) {
      s.left.wait(left, std::memory_order_acquire);
      left = s.left.load(std::memory_order_acquire);
    }
  }
  if (s.error) {
    std::exception_ptr error = std::exchange(s.error, nullptr);
    std::rethrow_exception(error);
  }
}

void ThreadPool::parallel_for(std::int64_t n, std::int64_t grain,
                              FunctionRef<void(std::int64_t, std::int64_t, int)> fn) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  if (n <= grain || n_threads_ == 1) {
    MNEME_CHECK(!t_in_work, "a thread pool cannot be used from inside its own work");
    const InWork in_work;
    for (std::int64_t begin = 0; begin < n; begin += grain) fn(begin, std::min(n, begin + grain), 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  run([&](int worker) {
    for (;;) {
      const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= n) return;
      fn(begin, std::min(n, begin + grain), worker);
    }
  });
}

std::vector<int> affinity_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int c = 0; c < CPU_SETSIZE; ++c)
      if (CPU_ISSET(c, &set)) cpus.push_back(c);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

int available_cpus() {
  return size32(affinity_cpus());
}

void restrict_to(std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace mneme
