// Tokens chosen by 1-bit keys, and attended, by themselves on a device.
#pragma once

#include <cstdint>

#include "src/checkpoint/model_config.h"

namespace mneme {

struct ChooseCase {
  std::int32_t depth = 32768, budget = 2048, group_tokens = 32;
};
struct ChooseResult {  // medians, of one layer
  double index_bytes = 0, scan_seconds = 0, choose_seconds = 0, attend_seconds = 0, attended_bytes = 0;
  double read_rate = 0;  // of the device's memory, bytes a second, by a kernel that only reads
};

// One sequence's random keys and queries, pages on the device, in so many layers that the device's cache holds none of
// them: the scan of the index alone; scan and selection, which writes down what is attended; decode attention of that.
//
// Errors  kDevice: no device. kUnsupported: the shape. kResource.
ChooseResult measure_choose_cuda(const ModelConfig& config, const ChooseCase& c, std::int32_t times);

}  // namespace mneme
