// Prefill attention of one layer, alone, on a device.
#pragma once

#include <cstdint>

namespace mneme {

struct AttentionResult {
  double seconds = 0;  // median
  double flops = 0;    // unmasked scores only
  double flops_a_second = 0;
  std::int32_t library_rows = 0;  // the others by this project's kernel
};

}  // namespace mneme
