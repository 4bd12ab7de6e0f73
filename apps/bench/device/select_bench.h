// Selection by 1-bit keys and sparse attention of one layer, alone, on a device.
#pragma once

#include <cstdint>

namespace mneme {

struct SelectCase {
  std::int32_t depth = 32768, budget = 2048, group_tokens = 32;
};
struct SelectResult {  // medians, of one layer
  double index_bytes = 0, scan_seconds = 0, select_seconds = 0, attend_seconds = 0, attended_bytes = 0;
  double read_rate = 0;  // device memory bandwidth of a read-only kernel, bytes per second
};

}  // namespace mneme
