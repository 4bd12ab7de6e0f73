#include <cstring>

#include "src/ops/norm_rope/rotate_keys.h"
#include "src/tensor/half_value.h"

namespace mneme {
namespace {

double element(const std::byte* p, DType dtype) {
  return load_half(p, 0, dtype);
}

void store(double value, DType dtype, std::byte* p) {
  const std::uint16_t bits = half_bits(static_cast<float>(value), dtype);
  std::memcpy(p, &bits, sizeof(bits));
}

}  // namespace

void rotate_keys_ref(std::span<const KvRun> runs, const AttentionShape& shape, const RopeAngles& angles,
                     std::int64_t first_row, std::byte* to) {
  const std::int32_t half = shape.head_dim / 2;
  std::int64_t row = first_row;
  for (const KvRun& run : runs) {
    const std::byte* from = run.kv;
    for (std::int32_t t = 0; t < run.n_tokens; ++t, ++row, from += shape.token_bytes(), to += shape.token_bytes()) {
      std::memcpy(to, from, shape.token_bytes());
      for (std::int32_t i = 0; i < half; ++i) {
        const bool halves = angles.pairs() == RopePairs::kHalves;
        const std::int32_t a = 2 * (halves ? i : 2 * i), b = 2 * (halves ? i + half : 2 * i + 1);
        const double x = element(from + a, shape.kv_dtype), y = element(from + b, shape.kv_dtype);
        const double c = angles.cos(row)[i], s = angles.sin(row)[i];
        store(x * c - y * s, shape.kv_dtype, to + a);
        store(y * c + x * s, shape.kv_dtype, to + b);
      }
    }
  }
}

}  // namespace mneme
