#include "src/selection/index/one_bit.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/tensor/half.h"

namespace mneme {
namespace {

float load_bf16(const std::byte* elements, std::int64_t i) {
  bf16 x;
  std::memcpy(&x, elements + 2 * i, sizeof(x));
  return x;
}

void store_bf16(float x, std::byte* elements, std::int64_t i) {
  const bf16 rounded(x);
  std::memcpy(elements + 2 * i, &rounded, sizeof(rounded));
}

}  // namespace

std::size_t one_bit_group_bytes(std::int32_t head_dim, std::int32_t g) {
  return head_dim * (4 + static_cast<std::size_t>(g) / 8);
}

void one_bit_round_steps(std::byte* steps, std::int32_t head_dim) {
  float largest = 0.0f;
  for (std::int32_t c = 0; c < head_dim; ++c) {
    const float s = load_bf16(steps, c);
    if (std::isfinite(s)) largest = std::max(largest, s);
  }
  if (largest == 0.0f) return;
  const int seq_slot = std::max(std::ilogb(largest) - 7, -126);
  for (std::int32_t c = 0; c < head_dim; ++c) {
    const float s = load_bf16(steps, c);
    if (std::isfinite(s)) store_bf16(std::ldexp(std::nearbyint(std::ldexp(s, -seq_slot)), seq_slot), steps, c);
  }
}

}  // namespace mneme
