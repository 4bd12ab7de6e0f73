#include "src/kv/kv_run.h"

#include <cstring>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#include "src/tensor/half.h"

namespace mneme {

void check_attention_shape(const AttentionShape& shape) {
  MNEME_CHECK(shape.group >= 1 && shape.group <= 16, "group {} is not in 1..16", shape.group);
  MNEME_CHECK(shape.head_dim >= 8 && shape.head_dim <= 256 && shape.head_dim % 8 == 0,
              "head_dim {} is not a multiple of 8 up to 256", shape.head_dim);
  MNEME_CHECK(shape.kv_dtype == DType::kBF16 || shape.kv_dtype == DType::kF16 || is_eight_bit(shape.kv_dtype),
              "keys and values of {}", dtype_name(shape.kv_dtype));
}

void store_kv(const float* k, const float* v, const AttentionShape& shape, std::byte* token) {
  const std::size_t d_head = shape.head_dim;
  if (is_eight_bit(shape.kv_dtype)) {
    const float scales[] = {quantise_row_cpu(k, shape.head_dim, shape.kv_dtype, token),
                            quantise_row_cpu(v, shape.head_dim, shape.kv_dtype, token + d_head)};
    std::memcpy(token + 2 * d_head, scales, sizeof(scales));
    return;
  }
  for (std::size_t d = 0; d < 2 * d_head; ++d) {
    const float value = d < d_head ? k[d] : v[d - d_head];
    const std::uint16_t bits = shape.kv_dtype == DType::kF16 ? f16(value).bits : bf16(value).bits;
    std::memcpy(token + 2 * d, &bits, 2);
  }
}

}  // namespace mneme
