#include <cstring>

#include "src/ops/norm_rope/rotate_keys.h"

namespace mneme {
namespace {

double element(const std::byte* p, DType dtype) {
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return static_cast<double>(dtype == DType::kBF16 ? static_cast<float>(std::bit_cast<bf16>(bits))
                                                   : static_cast<float>(std::bit_cast<f16>(bits)));
}

void store(double value, DType dtype, std::byte* p) {
  const auto x = static_cast<float>(value);
  const std::uint16_t bits = dtype == DType::kBF16 ? bf16(x).bits : f16(x).bits;
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
        const std::size_t a = 2 * static_cast<std::size_t>(halves ? i : 2 * i),
                          b = 2 * static_cast<std::size_t>(halves ? i + half : 2 * i + 1);
        const double x = element(from + a, shape.kv_dtype), y = element(from + b, shape.kv_dtype);
        const auto c = static_cast<double>(angles.cos(row)[i]), s = static_cast<double>(angles.sin(row)[i]);
        store(x * c - y * s, shape.kv_dtype, to + a);
        store(y * c + x * s, shape.kv_dtype, to + b);
      }
    }
  }
}

}  // namespace mneme
