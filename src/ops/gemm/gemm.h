// GEMMs of activations with weight matrices of any type that checkpoints store.
//
//   x  [m, k]         f32 or bf16      activations, one row per token
//   w  [n_out, k]     f32, f16, bf16, or a quantised type of src/tensor/dtype.h
//   y  [m, n_out]     f32              y = x w^T (+ bias) (+ y)
//
// Requires  m >= 0, k >= 1; k a multiple of a quantised type's block.
// NaN, inf  propagate as in IEEE arithmetic.
// Numerics  f32 accumulation. Weights bf16 and quantised: with many rows x and the dequantised weight are rounded to
//           bf16 (docs/design/numerics.md). Weights f32 and f16: f32 throughout.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "src/ops/simd/cpu_context.h"
#include "src/tensor/buffer.h"
#include "src/tensor/view.h"

namespace mneme {

// A weight matrix in the layout that the GEMM kernels read: a view of the checkpoint's bytes where these can be used
// directly (the mapping must outlive it), otherwise a repacked copy.
class WeightMatrix {
 public:
  WeightMatrix() = default;
  // w [n_out, k]. Misaligned rows (safetensors files may have them) are copied.
  explicit WeightMatrix(ConstTensorView w);
  // Column j of w multiplies x[columns[j]]; the caller keeps `columns`. Requires  a permutation of 0 to k - 1, or none.
  WeightMatrix(ConstTensorView w, std::span<const std::int32_t> columns);

  // 0 where there is no matrix, as of a mixture's dense feed-forward layer.
  std::int64_t n_out() const { return w_.rank() == 0 ? 0 : w_.dim(0); }
  std::int64_t n_in() const { return w_.rank() == 0 ? 0 : w_.dim(1); }
  const ConstTensorView& view() const { return w_; }
  std::span<const std::int32_t> columns() const { return columns_; }  // empty: those of x
  WeightMatrix without_columns() const;
  // Bytes that a GEMM with one row reads.
  std::size_t bytes() const { return n_out() * w_.stride_bytes(); }

 private:
  ConstTensorView w_;
  std::shared_ptr<const Buffer> copy_;
  std::span<const std::int32_t> columns_;
};

// One of several GEMMs with the same x.
struct GemmOutput {
  const WeightMatrix* w = nullptr;
  TensorView y;                 // f32 [m, w->n_out()]; rows may be strided
  const float* bias = nullptr;  // [n_out] or null
  bool accumulate = false;      // adds to y (the residual stream)
};

// The dtype of x that needs no conversion, for m rows.
DType gemm_input_dtype(const WeightMatrix& w, std::int64_t m);

void gemm_ref(const ConstTensorView& x, std::span<const GemmOutput> outputs);
void gemm_cpu(const ConstTensorView& x, std::span<const GemmOutput> outputs, const CpuContext& context);

// Dequantises row r of a weight matrix.   y [k] f32
void dequantise_row(const ConstTensorView& w, std::int64_t r, float* y);
// Quantises f32 to a weight type, as ggml's reference code does. Requires  can_quantise_to(y.dtype()).   x [n, k] f32, y [n, k]
void quantise_rows(const ConstTensorView& x, const TensorView& y);
// Whether quantise_rows() writes a type.
bool can_quantise_to(DType type);

}  // namespace mneme
