// Random activations and weights for the GEMM tests, and the error norm of plain arithmetic.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "src/ops/gemm/gemm.h"
#include "src/ops/gemm/quant.h"
#include "src/tensor/buffer.h"
#include "tests/ops/gemm/scale_offsets.h"

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

inline constexpr DType kQuantisedTypes[] = {DType::kQ8_0,   DType::kQ4_0,   DType::kQ4_1,  DType::kQ5_0, DType::kQ5_1,
                                            DType::kQ2_K,   DType::kQ3_K,   DType::kQ4_K,  DType::kQ5_K, DType::kQ6_K,
                                            DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kFp8,  DType::kInt4,
                                            DType::kInt8,   DType::kNVFP4};
inline constexpr DType kWeightTypes[] = {DType::kF32,   DType::kF16,  DType::kBF16, DType::kQ8_0,   DType::kQ4_0,
                                         DType::kQ4_1,  DType::kQ5_0, DType::kQ5_1, DType::kQ2_K,   DType::kQ3_K,
                                         DType::kQ4_K,  DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS,
                                         DType::kMXFP4, DType::kFp8,  DType::kInt4, DType::kInt8,   DType::kNVFP4};

// The least multiple of a type's block that is at least k.
inline std::int64_t whole_blocks(DType dtype, std::int64_t k) {
  const std::int64_t block = dtype_info(dtype).block;
  return (k + block - 1) / block * block;
}

// Puts a scale into a block of a type of quantised safetensors.
inline void put_f32_scale(DType type, float scale, std::uint64_t random, unsigned char* block) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(scale);
  if (type == DType::kInt4) bits = (bits & ~0xffu) | static_cast<std::uint32_t>(random % 17);
  std::memcpy(block, &bits, sizeof(bits));
  for (int g = 0; g < 4 && type == DType::kNVFP4; ++g)  // files have no NaN there
    if ((block[4 + g] & 0x7f) == 0x7f) block[4 + g] ^= 1;
}
inline bool has_f32_scale(DType type) {
  return type == DType::kFp8 || type == DType::kInt4 || type == DType::kInt8 || type == DType::kNVFP4;
}

// Blocks of random bits, about as large as random_f32: for the types that nothing is converted to.
inline Tensor random_iq4_xs(std::int64_t n_out, std::int64_t k, std::uint32_t seed) {
  Tensor t(DType::kIQ4_XS, {n_out, k});
  std::mt19937 rng(seed);
  auto* blocks = reinterpret_cast<BlockIQ4_XS*>(t.view().data());
  for (std::int64_t b = 0; b < n_out * k / kSuperBlock; ++b) {
    for (std::size_t i = 0; i < sizeof(BlockIQ4_XS); ++i)
      reinterpret_cast<unsigned char*>(blocks + b)[i] = static_cast<unsigned char>(rng());
    blocks[b].d = f16(1e-3f);
  }
  return t;
}

inline Tensor random_f32_scaled(DType type, std::int64_t n_out, std::int64_t k, std::uint32_t seed) {
  Tensor t(type, {n_out, k});
  std::mt19937 rng(seed);
  const float scale = type == DType::kFp8 ? 1.0f / 64 : type == DType::kInt4 ? 1.0f / 8 : 1.0f / 64;
  const float factor = scale * static_cast<float>(1 + seed % 8) / 8;
  for (std::size_t at = 0; at < t.bytes(); at += dtype_info(type).bytes) {
    auto* block = reinterpret_cast<unsigned char*>(t.view().data()) + at;
    for (int i = 4; i < dtype_info(type).bytes; ++i) block[i] = static_cast<unsigned char>(rng());
    const float of_block = scale * static_cast<float>(1 + rng() % 8) / 8;
    put_f32_scale(type, type == DType::kNVFP4 ? factor : of_block, rng(), block);
  }
  return t;
}

inline Tensor random_weights(DType dtype, std::int64_t n_out, std::int64_t k, std::uint32_t seed) {
  if (dtype == DType::kIQ4_XS) return random_iq4_xs(n_out, k, seed);
  if (has_f32_scale(dtype)) return random_f32_scaled(dtype, n_out, k, seed);
  return converted(random_f32(n_out, k, seed), dtype);
}

// sqrt(sum((x_j w_j)^2)) for every row of x and of w, [m, n_out]: what independent relative errors of the terms add up
// to.
inline std::vector<double> gemm_norms(const ConstTensorView& x, const ConstTensorView& w) {
  const std::int64_t m = x.dim(0), n = w.dim(0), k = x.dim(1);
  const auto squares = [k](const ConstTensorView& t) {
    std::vector<double> all(t.dim(0) * k);
    std::vector<float> row(k);
    for (std::int64_t i = 0; i < t.dim(0); ++i) {
      dequantise_row(t, i, row.data());
      for (std::int64_t j = 0; j < k; ++j) {
        const double v = row[j];
        all[i * k + j] = v * v;
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
