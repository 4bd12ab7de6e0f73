// Benchmarks on a device: the backend that a build with CUDA registers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "apps/bench/device/attention_bench.h"
#include "apps/bench/device/gemm_bench.h"
#include "apps/bench/device/select_bench.h"
#include "apps/bench/timed/allreduce_bench.h"
#include "apps/bench/timed/bench.h"
#include "src/cuda/device.h"
#include "src/model/weight_mix.h"

namespace mneme {

// As Bench, with the model on a device.
class DeviceBench {
 public:
  virtual ~DeviceBench() = default;

  // As Bench's. Errors  kUnsupported: the device does not run this method.
  virtual BenchResult decode(const BenchCase& c) = 0;
  virtual BenchResult prefill(const BenchCase& c) = 0;

  // Gathers random blocks from `pool_bytes` of page-locked host memory, alone and during decode steps of one sequence
  // at depth 2048.
  struct GatherCase {
    std::int32_t block_bytes = 16384, thread_blocks = 8;
    std::int64_t pool_bytes = 0;
    bool bulk = true;  // bulk copies, else loads
  };
  struct GatherResult {
    double idle_rate = 0, concurrent_rate = 0;   // bytes a second
    double step_alone = 0, step_concurrent = 0;  // seconds, median
  };
  virtual GatherResult gather(const GatherCase& c) = 0;

  virtual const DeviceInfo& device() const = 0;
  virtual std::int64_t weight_bytes() const = 0;
  virtual std::int64_t step_weight_bytes() const = 0;
  virtual DType weights() const = 0;
};

// Settings of a DeviceBench. `random`: random weights of `mix` in the model's shape; else the model's own weights.
struct DeviceBenchSetup {
  bool random = true;
  WeightMix mix;
  BenchOptions options;
  std::int32_t gpu_layers = -1;  // whose weights lie on the device; less than 0: all
  std::int64_t deepest = 0;      // largest depth of the cases, in tokens per sequence
  std::int32_t most = 1;         // largest batch of the cases
};

struct DeviceBenches {
  // Errors  kDevice, kResource, kUnsupported.
  std::unique_ptr<DeviceBench> (*make)(std::unique_ptr<Model> model, const DeviceBenchSetup& setup);
  // Prefill attention of n_rows tokens after `depth` others in one layer; medians of `times` runs.
  AttentionResult (*attention)(const ModelConfig& config, std::int32_t depth, std::int32_t n_rows, std::int32_t times);
  // Scan, selection and attention of one layer by 1-bit keys; medians of `times` runs.
  SelectResult (*select)(const ModelConfig& config, const SelectCase& c, std::int32_t times);
  // Skinny GEMMs of a layer; medians of `times` runs.
  GemmResult (*gemm)(const ModelConfig& config, const GemmCase& c, std::int32_t times);
  // Inside graphs. Errors  kDevice: no NCCL. RanksStopped.
  // Requires  cases of a form follow one another.
  std::vector<AllReduceResult> (*all_reduces)(Collective& ranks, std::span<const AllReduceCase> cases,
                                              std::int32_t times);
};

// The device's benchmarks. Errors  kDevice: no device, or a build without CUDA.
const DeviceBenches& device_benches();

}  // namespace mneme
