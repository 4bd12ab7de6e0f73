#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/bench/device/device_bench_cuda.h"
#include "apps/bench/timed/allreduce_bench.h"
#include "apps/bench/timed/samples.h"
#include "src/base/error.h"
#include "src/cuda/memory.h"
#include "src/cuda/stream.h"
#include "src/model/cuda/ranks/device_collective.h"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"
#include "src/parallel/peer_protocol.h"

namespace mneme {
namespace {

constexpr std::int32_t kHidden = 4096;
constexpr std::size_t kRowBytes = kHidden * sizeof(float);
constexpr std::size_t kMaxByPeers = std::size_t{4} << 20;  // above what a step sums so, to show where NCCL is faster

bool has_norm(const AllReduceCase& c) {
  return c.form.ends_with("+norm");
}

bool takes(const Collective& ranks, const AllReduceCase& c) {
  if (has_norm(c) && (c.bytes % kRowBytes != 0 || c.bytes / kRowBytes > std::size_t{kSkinnyRows})) return false;
  if (c.form == "reads") return ranks.size() == 2 && c.bytes > kPeerTile * sizeof(float);
  return !c.form.starts_with("peers") || c.bytes <= kMaxByPeers;
}

// Of all cases of the form of `c`, of which the largest has so many bytes: a communicator takes a second to make.
std::unique_ptr<DeviceCollective> collective_of(Collective& ranks, const AllReduceCase& c, std::size_t largest) {
  if (c.form == "host") return host_device_collective(ranks, largest);
  if (c.form.starts_with("nccl")) return nccl_device_collective(ranks);
  const bool reads = c.form == "reads";
  std::string why_not;
  const PeerLimits limits = {.packets = reads ? 1 : kMaxByPeers * static_cast<std::size_t>(ranks.size() - 1),
                             .rows = reads ? largest : 0};
  auto collective = peer_device_collective(host_device_collective(ranks, kRowBytes), limits, why_not);
  if (!why_not.empty()) fail(ErrorKind::kDevice, "--form {}: {}", c.form, why_not);
  return collective;
}

// What is summed, and the buffers of a step around it.
struct SummedBuffers {
  DeviceBuffer values, residual, next, weight, sums;
  explicit SummedBuffers(const AllReduceCase& c, const Stream& stream)
      : values(c.bytes, "values to sum"),
        residual(c.bytes, "a residual"),
        next(c.bytes, "input of a GEMM"),
        weight(kRowBytes, "weights of a norm"),
        sums(c.bytes / sizeof(float) + 1, "sums of squares") {
    for (const DeviceBuffer* b : {&values, &residual, &weight}) set_bytes(b->data(), 0, b->size(), stream);
  }
  void add(DeviceCollective& ranks, const AllReduceCase& c, const CudaContext& context) const {
    const float* const mine = ranks.own_rows() != nullptr ? ranks.own_rows() : values.as<float>();
    if (!has_norm(c)) return ranks.all_reduce(mine, values.as<float>(), c.bytes / sizeof(float), context);
    ranks.add_rows(values.as<float>(), static_cast<std::int32_t>(c.bytes / kRowBytes), kHidden,
                   {.residual = residual.as<float>(),
                    .norm_weight = weight.as<float>(),
                    .x_next = next.data(),
                    .sums = sums.as<float>()},
                   context);
  }
};

AllReduceResult measured(DeviceCollective& collective, const AllReduceCase& c, std::int32_t times) {
  const std::int32_t n = all_reduces_a_run(c.bytes);
  const Stream stream = Stream::make();
  const CudaContext context{.stream = stream.get(), .order = LaunchOrder::kOverlapped};
  const SummedBuffers rows(c, stream);
  const auto sums = [&] {
    for (std::int32_t k = 0; k < n; ++k) rows.add(collective, c, context);
  };
  collective.begin_step();
  sums();  // the first call of a size makes what it needs
  stream.synchronize();
  collective.end_step();
  const Graph graph = Graph::capture(stream, sums);
  const Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);
  std::vector<double> seconds;
  for (std::int32_t i = -2; i < times; ++i) {
    collective.ranks().barrier();
    collective.begin_step();
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    stream.synchronize();
    collective.end_step();
    if (i >= 0) seconds.push_back(end.seconds_since(begin) / n);
  }
  return {.seconds = quantiles_of(seconds).median, .a_run = n};
}

}  // namespace

std::vector<AllReduceResult> measure_all_reduces_cuda(Collective& ranks, std::span<const AllReduceCase> cases,
                                                      std::int32_t times) {
  use_device(0);
  std::vector<AllReduceResult> results;
  std::size_t largest = 0;
  for (const AllReduceCase& c : cases) largest = std::max(largest, c.bytes);
  std::string form;
  std::unique_ptr<DeviceCollective> collective;
  for (const AllReduceCase& c : cases) {
    if (c.form != form) {
      collective = nullptr;
      collective = collective_of(ranks, c, largest);
    }
    form = c.form;
    results.push_back(takes(ranks, c) ? measured(*collective, c, times) : AllReduceResult{});
  }
  return results;
}

}  // namespace mneme
