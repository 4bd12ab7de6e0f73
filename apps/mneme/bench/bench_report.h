// Results of `mneme bench` as tables and JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/bench/timed/bench.h"
#include "apps/mneme/measured/machine_json.h"
#include "src/cuda/device.h"

namespace mneme::cli {

struct BenchLine {
  std::string test;    // "tg64 @ d8192", "pp8192"
  std::string method;  // "full", ...
  BenchCase c;
  BenchResult result;
};

struct BenchReport {
  bool decode = true;
  std::string model;
  Machine machine;
  std::optional<DeviceInfo> device;  // absent: the CPU
  std::int64_t parameters = 0, weight_bytes = 0, step_weight_bytes = 0;
  std::string weights, kv_dtype, kv_store;  // types, and where keys and values lie
  int threads = 0;
  bool deterministic = false;
  std::int32_t steps = 0, warmup = 0, chunk_tokens = 0;
  std::vector<BenchLine> rows;
};

// One JSON object of a device test other than decode and prefill.
std::string device_test_json(const char* test, const DeviceInfo& device, const std::string& model,
                             const nlohmann::ordered_json& results);

// Seconds of a step by phase on a device, by operation on the CPU.
std::vector<std::pair<std::string_view, double>> row_phases(const BenchReport& report, const BenchLine& row);
// A bar a row, in milliseconds; on a device with a mark at the step that is not timed by phase.
std::string phases_svg(const BenchReport& report);
std::string bench_table(const BenchReport& report);
std::string bench_json(const BenchReport& report);

}  // namespace mneme::cli
