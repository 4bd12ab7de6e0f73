#include "src/model/cuda/ranks/device_collective.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "src/base/check.h"
#include "src/cuda/check.h"
#include "src/cuda/memory.h"
#include "src/model/cuda/ranks/peer_memory.h"
#include "src/model/cuda/ranks/step_watch.h"
#include "src/ops/norm_rope/rank_rows_cuda.h"
#include "src/parallel/nccl/nccl_collective.h"

namespace mneme {
namespace {

class NcclDeviceCollective final : public DeviceCollective {
 public:
  NcclDeviceCollective(Collective& ranks, double step_seconds)
      : ranks_(ranks),
        nccl_(library_, ranks),
        watch_(ranks, step_seconds,
               {.failure = [this] { return failure(); }, .end = [this](const std::string& why) { nccl_.abort(why); }}) {
  }

  Collective& ranks() const override { return ranks_; }
  std::string_view form() const override { return "nccl"; }
  void all_reduce(const float* mine, float* out, std::size_t n, const CudaContext& context) override {
    nccl_.all_reduce(mine, out, n, context.stream);
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
  void begin_step() override { watch_.begin(); }
  void end_step() override { watch_.end(); }

 private:
  std::string failure() {
    try {
      nccl_.check();
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  }

  NcclLibrary library_;
  Collective& ranks_;
  NcclCollective nccl_;
  StepWatch watch_;
};

class PeerDeviceCollective final : public DeviceCollective {
 public:
  PeerDeviceCollective(std::unique_ptr<DeviceCollective> rest, std::unique_ptr<PeerMemory> memory, double step_seconds)
      : rest_(std::move(rest)),
        memory_(std::move(memory)),
        watch_(rest_->ranks(), step_seconds,
               {.failure = [] { return std::string(); }, .end = [this](const std::string& why) { stop(why); }}) {}

  Collective& ranks() const override { return rest_->ranks(); }
  std::string_view form() const override { return "peers"; }
  void all_reduce(const float* mine, float* out, std::size_t n, const CudaContext& context) override {
    const auto elements = static_cast<std::int64_t>(n);
    if (n % 4 == 0 && n <= std::size_t{kPeerTile} * static_cast<std::size_t>(memory_->buffers().tiles))
      sum_over_peers_cuda(memory_->buffers(), memory_->ranks(), mine, out, elements, context);
    else if (n % 4 == 0 && mine == own_rows() && n * sizeof(float) <= memory_->rows_bytes())
      read_peer_rows_cuda(memory_->rows(), nullptr, out, elements, context);
    else
      rest_->all_reduce(mine, out, n, context);
  }
  void add_rows(float* rows, std::int32_t n, std::int32_t hidden, const EmbedOutput& out,
                const CudaContext& context) override {
    if (by_packets(n, hidden))
      add_peer_rows_cuda(memory_->buffers(), memory_->ranks(), rows, n, hidden, out, context);
    else if (out.x_next == nullptr && rows == own_rows() && by_reading(n, hidden))
      read_peer_rows_cuda(memory_->rows(), out.residual, nullptr, std::int64_t{n} * hidden, context);
    else
      rest_->add_rows(rows, n, hidden, out, context);
  }
  std::int32_t row_parts(std::int32_t n, std::int32_t hidden) const override {
    return by_packets(n, hidden) ? peer_row_parts(hidden) : rest_->row_parts(n, hidden);
  }
  bool adds_in_one(std::int32_t n, std::int32_t hidden) const override {
    return by_packets(n, hidden) || by_reading(n, hidden);
  }
  float* own_rows() const override { return memory_->rows_bytes() > 0 ? memory_->own_rows() : nullptr; }
  void all_gather(const float* part, float* out, std::size_t n, const CudaContext& context) override {
    rest_->all_gather(part, out, n, context);
  }
  void broadcast(float* values, std::size_t n, int root, const CudaContext& context) override {
    rest_->broadcast(values, n, root, context);
  }
  void hand_on(float* values, std::size_t n, int from, const CudaContext& context) override {
    rest_->hand_on(values, n, from, context);
  }
  void begin_step() override {
    rest_->begin_step();
    watch_.begin();
  }
  void end_step() override {
    watch_.end();
    rest_->end_step();
  }

 private:
  bool by_packets(std::int32_t n, std::int32_t hidden) const {
    return hidden % 4 == 0 && std::int64_t{n} * peer_row_parts(hidden) <= memory_->buffers().tiles;
  }
  bool by_reading(std::int32_t n, std::int32_t hidden) const {
    return hidden % 4 == 0 &&
           static_cast<std::size_t>(n) * static_cast<std::size_t>(hidden) * sizeof(float) <= memory_->rows_bytes();
  }
  void stop(const std::string& why) {
    rest_->ranks().abort(why);
    memory_->stop();
  }

  std::unique_ptr<DeviceCollective> rest_;
  std::unique_ptr<PeerMemory> memory_;
  StepWatch watch_;
};

class HostDeviceCollective final : public DeviceCollective {
 public:
  HostDeviceCollective(Collective& ranks, std::size_t most_bytes) : ranks_(ranks), staged_(2 * most_bytes) {}

  Collective& ranks() const override { return ranks_; }
  std::string_view form() const override { return "host"; }

  void all_reduce(const float* mine, float* out, std::size_t n, const CudaContext& context) override {
    const std::size_t bytes = n * sizeof(float);
    auto* const here = staged(bytes);
    copy(here, mine, bytes, context);
    call({.owner = this, .values = here, .n = n}, context);
    copy(out, here, bytes, context);
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

void DeviceCollective::add_rows(float* rows, std::int32_t n, std::int32_t hidden, const EmbedOutput& out,
                                const CudaContext& context) {
  all_reduce(rows, rows, static_cast<std::size_t>(n) * static_cast<std::size_t>(hidden), context);
  add_summed_rows_cuda(rows, n, hidden, out, {.stream = context.stream});
}
std::int32_t DeviceCollective::row_parts(std::int32_t, std::int32_t) const {
  return 1;
}
bool DeviceCollective::adds_in_one(std::int32_t, std::int32_t) const {
  return false;
}

std::unique_ptr<DeviceCollective> nccl_device_collective(Collective& ranks, double step_seconds) {
  return std::make_unique<NcclDeviceCollective>(ranks, step_seconds);
}
std::unique_ptr<DeviceCollective> host_device_collective(Collective& ranks, std::size_t most_bytes) {
  return std::make_unique<HostDeviceCollective>(ranks, most_bytes);
}
std::unique_ptr<DeviceCollective> make_device_collective(Collective& ranks, std::size_t most_bytes) {
  if (std::getenv("MNEME_RANKS_SHARE_GPU") != nullptr) return host_device_collective(ranks, most_bytes);
  std::string why_not;
  return peer_device_collective(nccl_device_collective(ranks), {.rows = most_bytes}, why_not);
}
std::unique_ptr<DeviceCollective> peer_device_collective(std::unique_ptr<DeviceCollective> rest,
                                                         const PeerLimits& limits, std::string& why_not,
                                                         double step_seconds) {
  Collective& ranks = rest->ranks();
  const auto others = static_cast<std::size_t>(std::max(ranks.size() - 1, 1));
  const auto tiles = static_cast<std::int32_t>(limits.packets / others / (kPeerTile * sizeof(float)));
  std::unique_ptr<PeerMemory> memory =
      PeerMemory::open(ranks, {.tiles = std::max(tiles, 1), .rows_bytes = limits.rows}, why_not);
  if (memory == nullptr) return rest;
  return std::make_unique<PeerDeviceCollective>(std::move(rest), std::move(memory), step_seconds);
}

}  // namespace mneme
