#include <algorithm>
#include <functional>

#include "apps/bench/allreduce_bench.h"
#include "apps/bench/device/device_bench_cuda.h"
#include "apps/bench/samples.h"
#include "src/base/error.h"
#include "src/cuda/memory.h"
#include "src/cuda/stream.h"
#include "src/model/cuda/ranks/device_collective.h"

namespace mneme {

AllReduceResult measure_all_reduce_cuda(Collective& ranks, const AllReduceCase& c, std::int32_t times) {
  use_device(0);
  const auto collective = c.form == "host" ? host_device_collective(ranks, c.bytes) : nccl_device_collective(ranks);
  const std::int32_t n = all_reduces_a_run(c.bytes);
  const Stream stream = Stream::make();
  const CudaContext context{.stream = stream.get()};
  const DeviceBuffer values(c.bytes, "values to sum");
  set_bytes(values.data(), 0, c.bytes, stream);
  const auto sums = [&] {
    for (std::int32_t k = 0; k < n; ++k) collective->all_reduce(values.as<float>(), c.bytes / sizeof(float), context);
  };
  collective->begin_step();
  sums();  // the first call of a size makes what it needs
  stream.synchronize();
  collective->end_step();
  const Graph graph = Graph::capture(stream, sums);
  const Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);
  std::vector<double> seconds;
  for (std::int32_t i = -2; i < times; ++i) {
    ranks.barrier();
    collective->begin_step();
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    stream.synchronize();
    collective->end_step();
    if (i >= 0) seconds.push_back(end.seconds_since(begin) / n);
  }
  return {.seconds = quantiles_of(seconds).median, .a_run = n};
}

}  // namespace mneme
