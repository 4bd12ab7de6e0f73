// Between f32 and the types weights are stored in: dequantise_row and quantise_rows of matmul.h.
#include "src/kernels/quant.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/check.h"
#include "src/kernels/matmul.h"

namespace mneme {
namespace {

// ggml has no rule for NaN and infinity; here they make the whole block NaN, so that nothing wrong looks right.
bool all_finite(const float* x) {
  return std::all_of(x, x + kQuantBlock, [](float v) { return std::isfinite(v); });
}

void quantise_block(const float* x, BlockQ8_0& y) {
  if (!all_finite(x)) {
    y = {f16(std::numeric_limits<float>::quiet_NaN()), {}};
    return;
  }
  float largest = 0.0f;
  for (int i = 0; i < kQuantBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  y.d = f16(d);
  // A d below 2^-128 has an infinite inverse; the clamp keeps the conversion defined.
  for (int i = 0; i < kQuantBlock; ++i) {
    const float v = x[i] == 0.0f ? 0.0f : std::round(x[i] * inverse);
    y.q[i] = static_cast<std::int8_t>(std::clamp(v, -127.0f, 127.0f));
  }
}

void quantise_block(const float* x, BlockQ4_0& y) {
  if (!all_finite(x)) {
    y = {f16(std::numeric_limits<float>::quiet_NaN()), {}};
    return;
  }
  float largest = 0.0f, signed_largest = 0.0f;
  for (int i = 0; i < kQuantBlock; ++i) {
    if (std::fabs(x[i]) > largest) {
      largest = std::fabs(x[i]);
      signed_largest = x[i];
    }
  }
  const float d = signed_largest / -8.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  y.d = f16(d);
  const auto level = [&](float v) {
    const float scaled = v == 0.0f ? 0.0f : v * inverse;
    return static_cast<std::uint8_t>(std::clamp(scaled + 8.5f, 0.0f, 15.0f));
  };
  for (int i = 0; i < kQuantBlock / 2; ++i)
    y.q[i] = static_cast<std::uint8_t>(level(x[i]) | (level(x[i + kQuantBlock / 2]) << 4));
}

template <typename Block>
void quantise_row(const float* x, std::int64_t k, std::byte* y) {
  auto* blocks = reinterpret_cast<Block*>(y);
  for (std::int64_t b = 0; b < k / kQuantBlock; ++b) quantise_block(x + b * kQuantBlock, blocks[b]);
}

void dequantise_block(const BlockQ8_0& b, float* y) {
  const auto d = static_cast<float>(b.d);
  for (int i = 0; i < kQuantBlock; ++i) y[i] = d * static_cast<float>(b.q[i]);
}

void dequantise_block(const BlockQ4_0& b, float* y) {
  const auto d = static_cast<float>(b.d);
  for (int i = 0; i < kQuantBlock / 2; ++i) {
    y[i] = d * static_cast<float>((b.q[i] & 15) - 8);
    y[i + kQuantBlock / 2] = d * static_cast<float>((b.q[i] >> 4) - 8);
  }
}

template <typename Block>
void dequantise_blocks(const std::byte* row, std::int64_t k, float* y) {
  const auto* blocks = reinterpret_cast<const Block*>(row);
  for (std::int64_t b = 0; b < k / kQuantBlock; ++b) dequantise_block(blocks[b], y + b * kQuantBlock);
}

template <typename Half>
void widen(const std::byte* row, std::int64_t k, float* y) {
  const auto* x = reinterpret_cast<const Half*>(row);
  for (std::int64_t i = 0; i < k; ++i) y[i] = static_cast<float>(x[i]);
}

template <typename Half>
void narrow(const float* x, std::int64_t k, std::byte* y) {
  auto* halves = reinterpret_cast<Half*>(y);
  for (std::int64_t i = 0; i < k; ++i) halves[i] = Half(x[i]);
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
    case DType::kI32:
    case DType::kU8:
      break;
  }
  MNEME_CHECK(false, "{} holds no weights", w.to_string());
}

void quantise_rows(const ConstTensorView& x, const TensorView& y) {
  MNEME_CHECK(x.rank() == 2 && y.rank() == 2 && x.dim(0) == y.dim(0) && x.dim(1) == y.dim(1), "{} into {}",
              x.to_string(), y.to_string());
  const std::int64_t k = x.dim(1);
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    const float* from = x.row_as<float>(i);
    std::byte* to = y.row(i);
    switch (y.dtype()) {
      case DType::kF32:
        std::copy_n(from, k, reinterpret_cast<float*>(to));
        break;
      case DType::kF16:
        narrow<f16>(from, k, to);
        break;
      case DType::kBF16:
        narrow<bf16>(from, k, to);
        break;
      case DType::kQ8_0:
        quantise_row<BlockQ8_0>(from, k, to);
        break;
      case DType::kQ4_0:
        quantise_row<BlockQ4_0>(from, k, to);
        break;
      case DType::kI32:
      case DType::kU8:
        MNEME_CHECK(false, "{} holds no weights", y.to_string());
    }
  }
}

}  // namespace mneme
