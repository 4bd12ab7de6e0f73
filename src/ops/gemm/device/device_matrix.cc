#include "src/ops/gemm/device/device_matrix.h"

#include "src/base/check.h"

namespace mneme {

WeightLayout weight_layout(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
    case DType::kFp8:
      return {1, 1024, 64};
    case DType::kInt8:
      return {1, 1024, 128};
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      return {1, 512, 64};
    case DType::kQ4_1:
    case DType::kInt4:
      return {1, 512, 128};
    case DType::kMXFP4:
      return {1, 512, 32};
    case DType::kQ5_0:
      return {1, 640, 64};
    case DType::kQ5_1:
      return {1, 640, 128};
    case DType::kQ2_K:
      return {2, 256, 160};
    case DType::kQ3_K:
      return {2, 384, 144};
    case DType::kQ4_K:
      return {2, 512, 160};
    case DType::kQ5_K:
      return {2, 640, 160};
    case DType::kQ6_K:
      return {2, 768, 144};
    case DType::kIQ4_XS:
      return {2, 512, 80};
    case DType::kNVFP4:
      return {2, 512, 160};
    default:
      break;
  }
  MNEME_CHECK(false, "{} has no layout of octets", dtype_name(dtype));
}

std::int64_t DeviceMatrix::slabs() const {
  const std::int64_t of_chunk = (is_quantised(dtype) ? weight_layout(dtype).slabs : 1) * kSlab;
  return (n_in + of_chunk - 1) / of_chunk * of_chunk / kSlab;
}

std::size_t DeviceMatrix::octet_bytes() const {
  const WeightLayout layout = weight_layout(dtype);
  return static_cast<std::size_t>(slabs() / layout.slabs * layout.chunk_bytes());
}

std::size_t DeviceMatrix::bytes() const {
  if (!is_quantised(dtype)) return static_cast<std::size_t>(n_out) * row_bytes(dtype, n_in);
  return static_cast<std::size_t>(octets()) * octet_bytes();
}

void no_skinny_gemm(std::int32_t rows) {
  check_failed(__FILE__, __LINE__, "skinny_gemm_takes()", fmt::format("no kernel for {} rows of this type", rows));
}

}  // namespace mneme
