// GEMMs with many rows on the device, by cuBLASLt. The library is loaded by the constructor: everything else runs on
// machines without it.
//
//   x  [m, k] bf16;  w  [n, k] bf16;  y  [m, n] bf16 or f32   y = x w^T, or y += x w^T (f32)
//
// Numerics  sums in f32; the split-K depends on the shape.
// Async     enqueues; after plan() for a shape it allocates nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "src/cuda/context.h"

namespace mneme {

struct CublasLtProblem {
  std::int64_t m = 0, n = 0, k = 0;
  bool f32 = false;         // y's type; else bf16
  bool accumulate = false;  // f32 only
  std::int64_t stride = 0;  // elements between rows of y; 0: n
  auto operator<=>(const CublasLtProblem&) const = default;
};

class CublasLtGemm {
 public:
  // Errors  kDevice: cuBLASLt is missing or fails; the message names the files tried.
  CublasLtGemm();
  ~CublasLtGemm();
  CublasLtGemm(const CublasLtGemm&) = delete;
  CublasLtGemm& operator=(const CublasLtGemm&) = delete;

  // Selects the algorithm for this shape.
  void plan(const CublasLtProblem& p);
  void run(const CublasLtProblem& p, const void* x, const void* w, void* y, const CudaContext& context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme
