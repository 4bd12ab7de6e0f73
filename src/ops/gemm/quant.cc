// Conversion between f32 and weight types: dequantise_row and quantise_rows of gemm.h.
#include <algorithm>

#include "src/base/check.h"
#include "src/ops/gemm/block_codec.h"
#include "src/ops/gemm/gemm.h"

namespace mneme {
namespace {

template <typename Block>
constexpr std::int64_t kValues = kQuantBlock;
template <typename Block>
requires(sizeof(Block) > sizeof(BlockFp8)) constexpr std::int64_t kValues<Block> = kSuperBlock;
template <>
constexpr std::int64_t kValues<BlockFp8> = kFp8Block;
template <>
constexpr std::int64_t kValues<BlockNVFP4> = kNvfp4Block;

template <typename Block>
void quantise_row(const float* x, std::int64_t k, std::byte* y) {
  auto* blocks = reinterpret_cast<Block*>(y);
  for (std::int64_t b = 0; b < k / kValues<Block>; ++b) quantise_block(x + b * kValues<Block>, blocks[b]);
}

template <typename Block>
void dequantise_blocks(const std::byte* row, std::int64_t k, float* y) {
  const auto* blocks = reinterpret_cast<const Block*>(row);
  for (std::int64_t b = 0; b < k / kValues<Block>; ++b) dequantise_block(blocks[b], y + b * kValues<Block>);
}

template <typename Half>
void widen(const std::byte* row, std::int64_t k, float* y) {
  const auto* x = reinterpret_cast<const Half*>(row);
  for (std::int64_t i = 0; i < k; ++i) y[i] = x[i];
}

template <typename Half>
void narrow(const float* x, std::int64_t k, std::byte* y) {
  auto* halves = reinterpret_cast<Half*>(y);
  for (std::int64_t i = 0; i < k; ++i) halves[i] = Half(x[i]);
}

void quantise_row_to(DType type, const float* x, std::int64_t k, std::byte* y) {
  switch (type) {
    case DType::kF32:
      std::copy_n(x, k, reinterpret_cast<float*>(y));
      return;
    case DType::kF16:
      return narrow<f16>(x, k, y);
    case DType::kBF16:
      return narrow<bf16>(x, k, y);
    case DType::kQ8_0:
      return quantise_row<BlockQ8_0>(x, k, y);
    case DType::kQ4_0:
      return quantise_row<BlockQ4_0>(x, k, y);
    case DType::kQ4_1:
      return quantise_row<BlockQ4_1>(x, k, y);
    case DType::kQ5_0:
      return quantise_row<BlockQ5_0>(x, k, y);
    case DType::kQ5_1:
      return quantise_row<BlockQ5_1>(x, k, y);
    case DType::kQ2_K:
      return quantise_row<BlockQ2_K>(x, k, y);
    case DType::kQ3_K:
      return quantise_row<BlockQ3_K>(x, k, y);
    case DType::kQ4_K:
      return quantise_row<BlockQ4_K>(x, k, y);
    case DType::kQ5_K:
      return quantise_row<BlockQ5_K>(x, k, y);
    case DType::kQ6_K:
      return quantise_row<BlockQ6_K>(x, k, y);
    case DType::kIQ4_NL:
      return quantise_row<BlockIQ4_NL>(x, k, y);
    case DType::kMXFP4:
      return quantise_row<BlockMXFP4>(x, k, y);
    case DType::kIQ4_XS:
    case DType::kFp8:
    case DType::kInt4:
    case DType::kInt8:
    case DType::kNVFP4:
    case DType::kI32:
    case DType::kU8:
      break;
  }
  MNEME_CHECK(false, "nothing is converted to {}", dtype_name(type));
}

}  // namespace

void dequantise_row(const ConstTensorView& w, std::int64_t r, float* y) {
  MNEME_CHECK(w.rank() == 2 && r >= 0 && r < w.dim(0), "row {} of {}", r, w.to_string());
  const std::int64_t k = w.dim(1);
  const std::byte* row = w.row(r);
  switch (w.dtype()) {
    case DType::kF32:
      std::copy_n(reinterpret_cast<const float*>(row), k, y);
      return;
    case DType::kF16:
      return widen<f16>(row, k, y);
    case DType::kBF16:
      return widen<bf16>(row, k, y);
    case DType::kQ8_0:
      return dequantise_blocks<BlockQ8_0>(row, k, y);
    case DType::kQ4_0:
      return dequantise_blocks<BlockQ4_0>(row, k, y);
    case DType::kQ4_1:
      return dequantise_blocks<BlockQ4_1>(row, k, y);
    case DType::kQ5_0:
      return dequantise_blocks<BlockQ5_0>(row, k, y);
    case DType::kQ5_1:
      return dequantise_blocks<BlockQ5_1>(row, k, y);
    case DType::kQ2_K:
      return dequantise_blocks<BlockQ2_K>(row, k, y);
    case DType::kQ3_K:
      return dequantise_blocks<BlockQ3_K>(row, k, y);
    case DType::kQ4_K:
      return dequantise_blocks<BlockQ4_K>(row, k, y);
    case DType::kQ5_K:
      return dequantise_blocks<BlockQ5_K>(row, k, y);
    case DType::kQ6_K:
      return dequantise_blocks<BlockQ6_K>(row, k, y);
    case DType::kIQ4_NL:
      return dequantise_blocks<BlockIQ4_NL>(row, k, y);
    case DType::kIQ4_XS:
      return dequantise_blocks<BlockIQ4_XS>(row, k, y);
    case DType::kMXFP4:
      return dequantise_blocks<BlockMXFP4>(row, k, y);
    case DType::kFp8:
      return dequantise_blocks<BlockFp8>(row, k, y);
    case DType::kInt4:
      return dequantise_blocks<BlockInt4>(row, k, y);
    case DType::kInt8:
      return dequantise_blocks<BlockInt8>(row, k, y);
    case DType::kNVFP4:
      return dequantise_blocks<BlockNVFP4>(row, k, y);
    case DType::kI32:
    case DType::kU8:
      break;
  }
  MNEME_CHECK(false, "{} holds no weights", w.to_string());
}

void quantise_rows(const ConstTensorView& x, const TensorView& y) {
  MNEME_CHECK(x.rank() == 2 && y.rank() == 2 && x.dim(0) == y.dim(0) && x.dim(1) == y.dim(1), "{} into {}",
              x.to_string(), y.to_string());
  for (std::int64_t i = 0; i < x.dim(0); ++i) quantise_row_to(y.dtype(), x.row_as<float>(i), x.dim(1), y.row(i));
}

bool can_quantise_to(DType type) {
  switch (type) {
    case DType::kIQ4_XS:
    case DType::kFp8:
    case DType::kInt4:
    case DType::kInt8:
    case DType::kNVFP4:
    case DType::kI32:
    case DType::kU8:
      return false;
    default:
      return true;
  }
}

}  // namespace mneme
