// f16 values at unaligned addresses of an entry.
#pragma once

#include <cstddef>
#include <cstring>

#include "src/tensor/half.h"

namespace mneme {

// Stores x rounded to f16, and returns what was stored.
inline float put_f16(float x, std::byte* at) {
  const f16 rounded(x);
  std::memcpy(at, &rounded, sizeof(rounded));
  return rounded;
}
inline float get_f16(const std::byte* at) {
  f16 x;
  std::memcpy(&x, at, sizeof(x));
  return x;
}

}  // namespace mneme
