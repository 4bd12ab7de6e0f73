#include "src/tensor/dtype.h"

#include "src/base/check.h"
#include "src/base/underlying.h"

namespace mneme {

const DTypeInfo& dtype_info(DType dtype) {
  static constexpr DTypeInfo kF32{"f32", 1, 4}, kF16{"f16", 1, 2}, kBF16{"bf16", 1, 2}, kI32{"i32", 1, 4},
      kU8{"u8", 1, 1}, kQ8_0{"q8_0", 32, 34}, kQ4_0{"q4_0", 32, 18}, kQ4_1{"q4_1", 32, 20}, kQ5_0{"q5_0", 32, 22},
      kQ5_1{"q5_1", 32, 24}, kQ2_K{"q2_k", 256, 84}, kQ3_K{"q3_k", 256, 110}, kQ4_K{"q4_k", 256, 144},
      kQ5_K{"q5_k", 256, 176}, kQ6_K{"q6_k", 256, 210}, kIQ4_NL{"iq4_nl", 32, 18}, kIQ4_XS{"iq4_xs", 256, 136},
      kMXFP4{"mxfp4", 32, 17}, kFp8{"fp8", 64, 68}, kInt4{"int4", 32, 20}, kInt8{"int8", 32, 36},
      kNVFP4{"nvfp4", 64, 40};
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
    case DType::kQ4_1:
      return kQ4_1;
    case DType::kQ5_0:
      return kQ5_0;
    case DType::kQ5_1:
      return kQ5_1;
    case DType::kQ2_K:
      return kQ2_K;
    case DType::kQ3_K:
      return kQ3_K;
    case DType::kQ4_K:
      return kQ4_K;
    case DType::kQ5_K:
      return kQ5_K;
    case DType::kQ6_K:
      return kQ6_K;
    case DType::kIQ4_NL:
      return kIQ4_NL;
    case DType::kIQ4_XS:
      return kIQ4_XS;
    case DType::kMXFP4:
      return kMXFP4;
    case DType::kFp8:
      return kFp8;
    case DType::kInt4:
      return kInt4;
    case DType::kInt8:
      return kInt8;
    case DType::kNVFP4:
      return kNVFP4;
  }
  MNEME_CHECK(false, "dtype {} does not exist", underlying(dtype));
}

std::size_t row_bytes(DType dtype, std::int64_t n) {
  const DTypeInfo& info = dtype_info(dtype);
  MNEME_CHECK(n >= 0 && n % info.block == 0, "a row of {} elements does not fill blocks of {} ({})", n, info.block,
              info.name);
  return n / info.block * info.bytes;
}

}  // namespace mneme
