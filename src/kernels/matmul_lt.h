// Products of many rows on the device, by cuBLASLt, which is loaded when the first one is made: a machine without the
// library still runs everything else.
//
//   x  [m, k] bf16;  w  [n, k] bf16;  y  [m, n] bf16 or f32   y = x w^T, or y += x w^T (f32)
//
// Numerics  sums in f32; which split of k is taken depends on the shape.
// Async     enqueues; after plan() for a shape it allocates nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "src/kernels/cuda_context.h"

namespace mneme {

struct LtProduct {
  std::int64_t m = 0, n = 0, k = 0;
  bool f32 = false;         // y's type; else bf16
  bool accumulate = false;  // f32 only
  auto operator<=>(const LtProduct&) const = default;
};

class MatmulLt {
 public:
  // Errors  kDevice: cuBLASLt is not there, or refuses; the message says what was looked for.
  MatmulLt();
  ~MatmulLt();
  MatmulLt(const MatmulLt&) = delete;
  MatmulLt& operator=(const MatmulLt&) = delete;

  // Chooses how products of this shape are computed.
  void plan(const LtProduct& p);
  void run(const LtProduct& p, const void* x, const void* w, void* y, const CudaContext& context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
