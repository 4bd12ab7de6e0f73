// The GPU part of `mneme doctor`.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/bench/device_rates.h"
#include "apps/mneme/measured/bench_model.h"
#include "src/cuda/device.h"
#include "src/model/weight_placement.h"

namespace mneme::cli {

struct DoctorDevice {
  int number = 0;
  DeviceInfo info;
  DeviceRates rates;
};

inline constexpr std::int32_t kStepRows = 1024;  // as `mneme run` and `mneme serve` take them

// Keys and values of `sequences` sequences, with a page for each to copy. in_file: layers with a window keep everything.
std::int64_t kv_bytes(const BenchShape& shape, std::int64_t context, std::int64_t sequences, DType dtype,
                      bool in_file = false);

// Measures every GPU; empty without one (no_device_reason() has the reason).
std::vector<DoctorDevice> look_at_devices();

// A model on one device, with keys and values there or in host memory: memory that it needs, and the upper bound of its
// decode rate at full context.
struct DeviceOutlook {
  std::int64_t device_needed = 0, host_needed = 0;
  bool fits = false;
  double tokens_per_second = 0;  // full attention, of all sequences
};
// Weights that do not fit beside the keys and values of such a method: as --gpu-layers auto places them.
struct DeviceSplit {
  WeightPlacement placement;
  std::int64_t layers = 0;  // of the model
  DeviceOutlook outlook;    // its host memory: weights, keys and values
};
struct DeviceOutlooks {
  DeviceOutlook device, host;
  // Pages that a method selects, out of host memory: budget 2048, one dense layer, boxes of 32 tokens.
  DeviceOutlook selected;
  DeviceSplit split;
};
DeviceOutlooks device_outlooks(const DoctorDevice& device, const BenchShape& shape, std::int64_t context,
                               std::int64_t batch, std::int64_t host_bytes, DType kv_dtype = DType::kBF16);

std::string devices_text(const std::vector<DoctorDevice>& devices);
std::string device_outlook_text(const DoctorDevice& device, const DeviceOutlooks& o);
nlohmann::ordered_json devices_json(const std::vector<DoctorDevice>& devices);
nlohmann::ordered_json device_outlook_json(const DoctorDevice& device, const DeviceOutlooks& o);

}  // namespace mneme::cli
