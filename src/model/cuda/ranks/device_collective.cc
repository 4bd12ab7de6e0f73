#include "src/model/cuda/ranks/device_collective.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>

#include "src/base/check.h"
#include "src/cuda/check.h"
#include "src/cuda/memory.h"
#include "src/parallel/nccl/nccl_collective.h"

namespace mneme {
namespace {

using Clock = std::chrono::steady_clock;

class NcclDeviceCollective final : public DeviceCollective {
 public:
  NcclDeviceCollective(Collective& ranks, double step_seconds)
      : ranks_(ranks), nccl_(library_, ranks), step_seconds_(step_seconds), watchdog_([this] { watch(); }) {}
  ~NcclDeviceCollective() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    watchdog_.join();
  }

  Collective& ranks() const override { return ranks_; }
  std::string_view form() const override { return "nccl"; }
  void all_reduce(float* values, std::size_t n, const CudaContext& context) override {
    nccl_.all_reduce(values, n, context.stream);
  }
  void all_gather(const float* part, float* out, std::size_t n, const CudaContext& context) override {
    nccl_.all_gather(part, out, n * sizeof(float), context.stream);
  }
  void broadcast(float* values, std::size_t n, int root, const CudaContext& context) override {
    nccl_.broadcast(values, n * sizeof(float), root, context.stream);
  }
  void hand_on(float* values, std::size_t n, int from, const CudaContext& context) override {
    if (ranks_.rank() == from) nccl_.send(values, n * sizeof(float), from + 1, context.stream);
    if (ranks_.rank() == from + 1) nccl_.receive(values, n * sizeof(float), from, context.stream);
  }
  void begin_step() override {
    expect_all_well();
    const std::lock_guard lock(mutex_);
    began_ = Clock::now();
    running_ = true;
  }
  void end_step() override {
    {
      const std::lock_guard lock(mutex_);
      running_ = false;
    }
    expect_all_well();
  }

 private:
  void expect_all_well() {
    const std::lock_guard lock(mutex_);
    if (!why_.empty()) throw RanksStopped(why_);
  }

  // Kernels that wait for a rank that is gone never end by themselves.
  void watch() {
    constexpr auto kLook = std::chrono::milliseconds(100);
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLook, [this] { return ends_; })) {
      if (!running_) continue;
      const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
      lock.unlock();
      std::string why = ranks_.failure();
      if (why.empty() && seconds > step_seconds_) why = fmt::format("a step took more than {} s", step_seconds_);
      if (why.empty()) {
        try {
          nccl_.check();
        } catch (const Error& e) {
          why = e.what();
        }
      }
      if (!why.empty()) nccl_.abort(why);
      lock.lock();
      if (why.empty()) continue;
      why_ = why;
      return;
    }
  }

  NcclLibrary library_;
  Collective& ranks_;
  NcclCollective nccl_;
  double step_seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false, running_ = false;
  Clock::time_point began_;
  std::string why_;  // nothing may be launched any more
  std::thread watchdog_;
};

class HostDeviceCollective final : public DeviceCollective {
 public:
  HostDeviceCollective(Collective& ranks, std::size_t most_bytes) : ranks_(ranks), staged_(2 * most_bytes) {}

  Collective& ranks() const override { return ranks_; }
  std::string_view form() const override { return "host"; }

  void all_reduce(float* values, std::size_t n, const CudaContext& context) override {
    const std::size_t bytes = n * sizeof(float);
    auto* const here = staged(bytes);
    copy(here, values, bytes, context);
    call({.owner = this, .values = here, .n = n}, context);
    copy(values, here, bytes, context);
  }
  void broadcast(float* values, std::size_t n, int root, const CudaContext& context) override {
    const std::size_t bytes = n * sizeof(float);
    auto* const here = staged(bytes);
    if (ranks_.rank() == root) copy(here, values, bytes, context);
    call({.owner = this, .values = here, .n = n, .root = root}, context);
    if (ranks_.rank() != root) copy(values, here, bytes, context);
  }
  // Every rank is told, as the processes' own collective has no pairs.
  void hand_on(float* values, std::size_t n, int from, const CudaContext& context) override {
    broadcast(values, n, from, context);
  }
  void all_gather(const float* part, float* out, std::size_t n, const CudaContext& context) override {
    const std::size_t bytes = n * sizeof(float), all = bytes * static_cast<std::size_t>(ranks_.size());
    float* const to = staged(all);
    float* const here = to + staged_.size() / 2 / sizeof(float);
    copy(here, part, bytes, context);
    call({.owner = this, .values = here, .n = n, .out = to}, context);
    copy(out, to, all, context);
  }
  void begin_step() override { expect_all_well(); }
  void end_step() override { expect_all_well(); }

 private:
  struct Call {
    HostDeviceCollective* owner;
    float* values;
    std::size_t n;
    float* out = nullptr;  // of a gather; null: a sum in place,
    int root = -1;         // or where there is one, a broadcast
  };

  float* staged(std::size_t bytes) const {
    MNEME_CHECK(bytes <= staged_.size() / 2, "{} bytes, room for {}", bytes, staged_.size() / 2);
    return staged_.as<float>();
  }
  static void copy(void* to, const void* from, std::size_t bytes, const CudaContext& context) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, context.stream), "copying what ranks exchange");
  }
  // Graphs replay a call with the same argument: it stays where it is.
  void call(const Call& call, const CudaContext& context) {
    Call& kept = calls_.try_emplace(std::tuple(call.values, call.out, call.n, call.root), call).first->second;
    cuda_check(cudaLaunchHostFunc(context.stream, &HostDeviceCollective::run, &kept), "a host function");
  }
  // On a thread of CUDA's; the one that enqueued the step waits for it. What fails once is not tried again.
  static void run(void* argument) {
    const Call& call = *static_cast<const Call*>(argument);
    HostDeviceCollective& self = *call.owner;
    if (self.failed_.load()) return;
    try {
      const std::span<float> values(call.values, call.n);
      if (call.root >= 0) {
        self.ranks_.broadcast(std::as_writable_bytes(values), call.root);
      } else if (call.out == nullptr) {
        self.ranks_.all_reduce(values);
      } else {
        self.ranks_.all_gather(
            std::as_bytes(values),
            std::as_writable_bytes(std::span(call.out, call.n * static_cast<std::size_t>(self.ranks_.size()))));
      }
    } catch (const std::exception& e) {
      const std::lock_guard lock(self.mutex_);
      self.why_ = e.what();
      self.failed_ = true;
    }
  }
  void expect_all_well() {
    if (!failed_.load()) return;
    const std::lock_guard lock(mutex_);
    std::string_view why = why_;
    constexpr std::string_view kPrefix = "the ranks stopped: ";
    if (why.starts_with(kPrefix)) why.remove_prefix(kPrefix.size());
    throw RanksStopped(std::string(why));
  }

  Collective& ranks_;
  PinnedBuffer staged_;  // a result, then what a gather takes
  std::map<std::tuple<float*, float*, std::size_t, int>, Call> calls_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::string why_;
};

}  // namespace

std::unique_ptr<DeviceCollective> nccl_device_collective(Collective& ranks, double step_seconds) {
  return std::make_unique<NcclDeviceCollective>(ranks, step_seconds);
}
std::unique_ptr<DeviceCollective> host_device_collective(Collective& ranks, std::size_t most_bytes) {
  return std::make_unique<HostDeviceCollective>(ranks, most_bytes);
}
std::unique_ptr<DeviceCollective> make_device_collective(Collective& ranks, std::size_t most_bytes) {
  if (std::getenv("MNEME_RANKS_SHARE_GPU") != nullptr) return host_device_collective(ranks, most_bytes);
  return nccl_device_collective(ranks);
}

}  // namespace mneme
