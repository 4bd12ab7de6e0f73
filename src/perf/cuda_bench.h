// Bench on a CUDA device: the same cases and results, the model's weights made there.
#pragma once

#include <memory>

#include "src/device/device.h"
#include "src/perf/bench.h"

namespace mneme {

class CudaBench {
 public:
  // Weights of `dtype` for the model's shape; or those of a model that has them (dtype is then what they are).
  // `deepest` tokens a sequence and `most` sequences are what the cases will ask for.
  //
  // Errors  kDevice, kResource, kUnsupported.
  CudaBench(std::unique_ptr<Model> model, bool random, DType dtype, const BenchOptions& options, std::int64_t deepest,
            std::int32_t most);
  ~CudaBench();

  // As Bench's. Errors  kUnsupported: what the device cannot do of a method.
  BenchResult decode(const BenchCase& c);
  BenchResult prefill(const BenchCase& c);

  // Random blocks out of `pool_bytes` of page-locked host memory, by themselves and beside decode steps of one sequence
  // at depth 2048.
  struct GatherCase {
    std::int32_t block_bytes = 16384, blocks_of_threads = 8;
    std::int64_t pool_bytes = 0;
    bool bulk = true;  // bulk copies, else loads
  };
  struct GatherResult {
    double idle_rate = 0, beside_rate = 0;   // bytes a second
    double step_alone = 0, step_beside = 0;  // seconds, median
  };
  GatherResult gather(const GatherCase& c);

  const DeviceInfo& device() const;
  std::int64_t weight_bytes() const, step_weight_bytes() const;
  DType weights() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
