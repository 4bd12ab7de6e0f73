#include <cmath>
#include <numbers>

#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/ops/gemm/gemm.h"
#include "src/ops/norm_rope/pointwise.h"

namespace mneme {
namespace {

void put(const TensorView& out, std::int64_t row, std::int64_t column, double value) {
  if (out.dtype() == DType::kBF16)
    out.row_as<bf16>(row)[column] = bf16(static_cast<float>(value));
  else
    out.row_as<float>(row)[column] = static_cast<float>(value);
}

// out = fn(gate, up), in f64. out_type: what `out` must be.
template <typename Fn>
void gated_ref(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out, DType out_type, Fn fn) {
  const std::int64_t n = gate.dim(0), ffn = gate.dim(1);
  expect_shape("up", up, DType::kF32, {n, ffn});
  expect_shape("out", out, out_type, {n, ffn});
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < ffn; ++j) put(out, i, j, fn(gate.row_as<float>(i)[j], up.row_as<float>(i)[j]));
}

}  // namespace

void embed_ref(std::span<const std::int32_t> ids, const ConstTensorView& table, const TensorView& out) {
  expect_shape("out", out, DType::kF32, {std::ssize(ids), table.dim(1)});
  for (std::size_t i = 0; i < ids.size(); ++i) dequantise_row(table, ids[i], out.row_as<float>(i));
}

void rms_norm_ref(const ConstTensorView& x, const float* weight, double eps, const TensorView& out) {
  const std::int64_t n = x.dim(0), h = x.dim(1);
  expect_shape("out", out, out.dtype(), {n, h});
  for (std::int64_t i = 0; i < n; ++i) {
    const float* row = x.row_as<float>(i);
    double sum = 0.0;
    for (std::int64_t j = 0; j < h; ++j) sum += row[j] * double{row[j]};
    const double scale = 1.0 / std::sqrt(ratio(sum, h) + eps);
    for (std::int64_t j = 0; j < h; ++j) put(out, i, j, row[j] * scale * weight[j]);
  }
}

void swiglu_ref(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out) {
  gated_ref(gate, up, out, out.dtype(), [](double g, double u) { return g / (1.0 + std::exp(-g)) * u; });
}

void geglu_ref(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out) {
  constexpr double kCubic = 0.044715;
  gated_ref(gate, up, out, out.dtype(), [](double g, double u) {
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (g + kCubic * g * g * g);
    // (1 + tanh(z)) / 2 without the cancellation
    return g / (1.0 + std::exp(-2.0 * inner)) * u;
  });
}

void clamped_swiglu_ref(const ConstTensorView& gate, const ConstTensorView& up, float limit, const TensorView& out) {
  const double most = limit;
  gated_ref(gate, up, out, DType::kF32, [most](double gate_value, double up_value) {
    const double g = gate_value > most ? most : gate_value;
    const double u = up_value > most ? most : up_value < -most ? -most : up_value;
    return (u + 1.0) * g / (1.0 + std::exp(-1.702 * g));
  });
}

}  // namespace mneme
