// The part of `mneme doctor` that looks at GPUs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/cli/bench_model.h"
#include "src/device/device.h"
#include "src/perf/device_rates.h"

namespace mneme::cli {

struct DoctorDevice {
  int number = 0;
  DeviceInfo info;
  DeviceRates rates;
};

// Every GPU, measured; empty where there is none (no_device_reason() says why).
std::vector<DoctorDevice> look_at_devices();

// A model on one device, with its keys and values there or in host memory: what it needs of both, and what a step can
// reach at most, with the context full.
struct DeviceOutlook {
  std::int64_t device_needed = 0, host_needed = 0;
  bool fits = false;
  double tokens_per_second = 0;  // full attention, of all sequences
};
struct DeviceOutlooks {
  DeviceOutlook device, host;
  // Pages that a method selects, out of host memory: budget 2048, one dense layer, boxes of 32 tokens.
  DeviceOutlook selected;
};
DeviceOutlooks device_outlooks(const DoctorDevice& device, const BenchShape& shape, std::int64_t context,
                               std::int64_t batch, std::int64_t host_bytes);

std::string devices_text(const std::vector<DoctorDevice>& devices);
std::string device_outlook_text(const DoctorDevice& device, const DeviceOutlooks& o);
nlohmann::ordered_json devices_json(const std::vector<DoctorDevice>& devices);
nlohmann::ordered_json device_outlook_json(const DoctorDevice& device, const DeviceOutlooks& o);

}  // namespace mneme::cli
