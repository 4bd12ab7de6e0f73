#include "src/tensor/dtype.h"

#include "src/base/check.h"

namespace mneme {

const DTypeInfo& dtype_info(DType dtype) {
  static constexpr DTypeInfo kF32{"f32", 1, 4}, kF16{"f16", 1, 2}, kBF16{"bf16", 1, 2}, kI32{"i32", 1, 4},
      kU8{"u8", 1, 1}, kQ8_0{"q8_0", 32, 34}, kQ4_0{"q4_0", 32, 18};
  switch (dtype) {
    case DType::kF32:
      return kF32;
    case DType::kF16:
      return kF16;
    case DType::kBF16:
      return kBF16;
    case DType::kI32:
      return kI32;
    case DType::kU8:
      return kU8;
    case DType::kQ8_0:
      return kQ8_0;
    case DType::kQ4_0:
      return kQ4_0;
  }
  MNEME_CHECK(false, "dtype {} does not exist", static_cast<int>(dtype));
}

std::size_t row_bytes(DType dtype, std::int64_t n) {
  const DTypeInfo& info = dtype_info(dtype);
  MNEME_CHECK(n >= 0 && n % info.block == 0, "a row of {} elements does not fill blocks of {} ({})", n, info.block,
              info.name);
  return static_cast<std::size_t>(n / info.block) * static_cast<std::size_t>(info.bytes);
}

}  // namespace mneme
