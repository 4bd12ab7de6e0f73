// Random activations and weights for the tests of products, and the error that plain arithmetic would make.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
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

// For every row of x and of w the square root of sum((x_j w_j)^2), [m, n_out]: what independent relative errors of the
// products add up to.
inline std::vector<double> norms_of_products(const ConstTensorView& x, const ConstTensorView& w) {
  const std::int64_t m = x.dim(0), n = w.dim(0), k = x.dim(1);
  const auto squares = [k](const ConstTensorView& t) {
    std::vector<double> all(static_cast<std::size_t>(t.dim(0) * k));
    std::vector<float> row(static_cast<std::size_t>(k));
    for (std::int64_t i = 0; i < t.dim(0); ++i) {
      dequantise_row(t, i, row.data());
      for (std::int64_t j = 0; j < k; ++j) {
        const auto v = static_cast<double>(row[static_cast<std::size_t>(j)]);
        all[static_cast<std::size_t>(i * k + j)] = v * v;
      }
    }
    return all;
  };
  const std::vector<double> a = squares(x), b = squares(w);
  std::vector<double> norms;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t r = 0; r < n; ++r)
      norms.push_back(
          std::sqrt(std::inner_product(a.begin() + i * k, a.begin() + (i + 1) * k, b.begin() + r * k, 0.0)));
  return norms;
}

}  // namespace mneme
