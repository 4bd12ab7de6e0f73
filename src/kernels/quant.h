// The blocks of the two quantised weight types, as they lie in memory.
#pragma once

#include <cstdint>

#include "src/tensor/half.h"

namespace mneme {

inline constexpr int kQuantBlock = 32;

struct BlockQ8_0 {
  f16 d;
  std::int8_t q[kQuantBlock];
};

// Value i < 16: d * (low nibble of q[i] - 8); i >= 16: d * (high nibble of q[i - 16] - 8).
struct BlockQ4_0 {
  f16 d;
  std::uint8_t q[kQuantBlock / 2];
};

static_assert(sizeof(BlockQ8_0) == 34 && alignof(BlockQ8_0) == 2);
static_assert(sizeof(BlockQ4_0) == 18 && alignof(BlockQ4_0) == 2);

}  // namespace mneme
