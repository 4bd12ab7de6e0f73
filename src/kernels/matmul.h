// Products of activations with weight matrices, the weights in any type a checkpoint stores.
//
//   x  [m, k]         f32 or bf16      activations, one row a token
//   w  [n_out, k]     f32, f16, bf16, q8_0, q4_0
//   y  [m, n_out]     f32              y = x w^T (+ bias) (+ y)
//
// Requires  m >= 0, k >= 1; k a multiple of 32 for q8_0 and q4_0.
// NaN, inf  go through as IEEE arithmetic has them.
// Numerics  products accumulate in f32. Weights bf16, q8_0, q4_0: for many rows x is rounded to bf16 and the
// dequantised weight too
//           (docs/numerics.md); weights f32 and f16: computed in f32 throughout.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "src/kernels/cpu_context.h"
#include "src/tensor/buffer.h"
#include "src/tensor/view.h"

namespace mneme {

// A weight matrix in the form the products want. Views the checkpoint's bytes where they serve as they are (the mapping
// must outlive it), holds a repacked copy where that is faster.
class WeightMatrix {
 public:
  WeightMatrix() = default;
  // w [n_out, k]. Rows that do not start where their elements may (a safetensors file can lay them anywhere) are
  // copied.
  explicit WeightMatrix(ConstTensorView w);

  std::int64_t n_out() const { return w_.dim(0); }
  std::int64_t n_in() const { return w_.dim(1); }
  const ConstTensorView& view() const { return w_; }
  // Bytes that one product with a single row must read.
  std::size_t bytes() const { return static_cast<std::size_t>(w_.dim(0)) * w_.stride_bytes(); }

 private:
  ConstTensorView w_;
  std::shared_ptr<const Buffer> copy_;
};

// One of several products with the same x.
struct MatmulOutput {
  const WeightMatrix* w = nullptr;
  TensorView y;                 // f32 [m, w->n_out()]; rows may be further apart than their length
  const float* bias = nullptr;  // [n_out] or null
  bool accumulate = false;      // add to what y holds (the residual stream)
};

// The type of x that spares the product a conversion, for m rows.
DType matmul_input_dtype(const WeightMatrix& w, std::int64_t m);

void matmul_ref(const ConstTensorView& x, std::span<const MatmulOutput> outputs);
void matmul_cpu(const ConstTensorView& x, std::span<const MatmulOutput> outputs, const CpuContext& context);

// Row r of a weight matrix as f32: y [k].
void dequantise_row(const ConstTensorView& w, std::int64_t r, float* y);
// f32 -> dtype, k values a row; q8_0 and q4_0 as ggml quantises them.  x [n, k] f32, y [n, k] of any weight type.
void quantise_rows(const ConstTensorView& x, const TensorView& y);

}  // namespace mneme
