// Prefill attention of one layer, alone, on a device.
#pragma once

#include <cstdint>

namespace mneme {

struct AttentionResult {
  double seconds = 0;  // median
  double flops = 0;    // unmasked scores only
  double flops_a_second = 0;
  bool by_library = false;  // else by this project's kernel
};

}  // namespace mneme
