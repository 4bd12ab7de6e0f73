// Random activations and weights for the tests of products, and the error that plain arithmetic would make.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "src/kernels/matmul.h"
#include "src/tensor/buffer.h"

namespace mneme {

inline Tensor random_f32(std::int64_t rows, std::int64_t columns, std::uint32_t seed) {
  Tensor t(DType::kF32, {rows, columns});
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < rows * columns; ++i) t.as<float>()[i] = normal(rng);
  return t;
}

inline Tensor converted(const ConstTensorView& x, DType dtype) {
  Tensor t(dtype, {x.dim(0), x.dim(1)});
  quantise_rows(x, t);
  return t;
}

inline Tensor random_weights(DType dtype, std::int64_t n_out, std::int64_t k, std::uint32_t seed) {
  return converted(random_f32(n_out, k, seed), dtype);
}

// Every |x_j w_j| of a row pair added up: what relative errors of single products scale with, in the root mean square.
inline double norm_of_products(const ConstTensorView& x, std::int64_t i, const ConstTensorView& w, std::int64_t r) {
  const auto k = static_cast<std::size_t>(x.dim(1));
  std::vector<float> a(k), b(k);
  dequantise_row(x, i, a.data());
  dequantise_row(w, r, b.data());
  double sum = 0.0;
  for (std::size_t j = 0; j < k; ++j) sum += std::pow(static_cast<double>(a[j]) * static_cast<double>(b[j]), 2);
  return std::sqrt(sum);
}

}  // namespace mneme
