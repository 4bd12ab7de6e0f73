// The benchmarks that device_bench.h registers, one file each.
#pragma once

#include "apps/bench/device/device_bench.h"

namespace mneme {

std::unique_ptr<DeviceBench> make_device_bench_cuda(std::unique_ptr<Model> model, const DeviceBenchSetup& setup);
AttentionResult measure_attention_cuda(const ModelConfig& config, std::int32_t depth, std::int32_t n_rows,
                                       std::int32_t times);
SelectResult measure_select_cuda(const ModelConfig& config, const SelectCase& c, std::int32_t times);
GemmResult measure_gemm_cuda(const ModelConfig& config, const GemmCase& c, std::int32_t times);
std::vector<AllReduceResult> measure_all_reduces_cuda(Collective& ranks, std::span<const AllReduceCase> cases,
                                                      std::int32_t times);

}  // namespace mneme
