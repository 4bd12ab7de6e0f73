#include "src/ops/gemm/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "src/base/thread_pool.h"
#include "src/ops/gemm/gemm_kernels.h"
#include "src/ops/gemm/gemm_onednn.h"
#include "tests/ops/gemm/gemm_testing.h"
#include "tests/ops/simd/each_target.h"
#include "tests/sanitized.h"

namespace mneme {
namespace {

constexpr Rounding kRoundings[] = {Rounding::kFast, Rounding::kFixed};

// Error bound of a sum. Rounding to bf16 has a relative error of up to 2^-8, 0.0016 root mean square, 0.0023 for a
// product of two rounded values. k independent errors add up as the root of their squares, and no sum of a test is off
// by seven standard deviations. Paths that do not round to bf16 must be far better.
double tolerance(DType w, std::int64_t m, Rounding rounding, double norm, std::int64_t k) {
  const bool bf16_path = (m >= 8 || rounding == Rounding::kFixed) && w != DType::kF32 && w != DType::kF16;
  const double one = bf16_path ? 0x1p-8 : is_quantised(w) ? 0x1p-13 : 0x1p-22;
  return norm * one * 4 + 1e-6 * norm * std::sqrt(static_cast<double>(k)) + 1e-30;
}

struct Case {
  std::int64_t m, n_out, k;
  DType w, x = DType::kF32;
  bool bias = false, accumulate = false, strided = false;
  int threads = 2;
  Rounding rounding = Rounding::kFast;
};

std::string name(const Case& c) {
  return fmt::format("m {} n {} k {} w {} x {} bias {} accumulate {} strided {} threads {} fixed {}", c.m, c.n_out, c.k,
                     dtype_name(c.w), dtype_name(c.x), c.bias, c.accumulate, c.strided, c.threads,
                     c.rounding == Rounding::kFixed);
}

// A y with rows `stride` apart, filled with a pattern that shows what was written.
struct Output {
  Output(std::int64_t m, std::int64_t n, std::int64_t stride)
      : tensor(DType::kF32, {std::max<std::int64_t>(m, 1), stride}) {
    for (std::int64_t i = 0; i < std::max<std::int64_t>(m, 1) * stride; ++i)
      tensor.as<float>()[i] = static_cast<float>(i % 7) - 3.0f;
    view = TensorView(tensor.view().data(), DType::kF32, {m, n}).with_stride(static_cast<std::size_t>(stride) * 4);
  }
  Tensor tensor;
  TensorView view;
};

void run_case(Case c) {
  c.k = whole_blocks(c.w, c.k);
  SCOPED_TRACE(name(c));
  const Tensor plain = random_f32(std::max<std::int64_t>(c.m, 1), c.k, 1),
               weights = random_weights(c.w, c.n_out, c.k, 2);
  const Tensor xt = converted(plain, c.x);
  const ConstTensorView x = ConstTensorView(xt).rows(0, c.m);
  const WeightMatrix w{ConstTensorView(weights)};
  const Tensor bias = random_f32(1, c.n_out, 3);
  const std::int64_t stride = c.strided ? c.n_out + 5 : c.n_out;
  Output expected(c.m, c.n_out, stride), got(c.m, c.n_out, stride);
  ThreadPool pool(c.threads);
  const float* b = c.bias ? bias.as<float>() : nullptr;
  const GemmOutput ref_out{.w = &w, .y = expected.view, .bias = b, .accumulate = c.accumulate};
  const GemmOutput cpu_out{.w = &w, .y = got.view, .bias = b, .accumulate = c.accumulate};
  gemm_ref(x, {&ref_out, 1});
  gemm_cpu(x, {&cpu_out, 1}, {.pool = &pool, .rounding = c.rounding});
  const std::vector<double> norms = gemm_norms(x, weights);
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t r = 0; r < c.n_out; ++r) {
      const double diff = std::abs((got.view.row_as<float>(i)[r]) - double{expected.view.row_as<float>(i)[r]});
      const double norm = norms[i * c.n_out + r];
      // Bias and the old y add one more rounding each, in f32.
      ASSERT_LE(diff, tolerance(c.w, c.m, c.rounding, norm, c.k) + 1e-6) << "row " << i << " column " << r;
    }
    for (std::int64_t r = c.n_out; r < stride; ++r)
      ASSERT_EQ(got.view.row_as<float>(i)[r], expected.view.row_as<float>(i)[r]) << "written past the end of row " << i;
  }
}

// Random bits, and rows of zeros and ones alone; scales of f16 are made moderate so that nothing overflows.
Tensor blocks_of_any_bits(DType type, std::int64_t n_out, std::int64_t k) {
  Tensor w(type, {n_out, k});
  std::mt19937 rng(11);
  const std::size_t bytes = dtype_info(type).bytes;
  for (std::size_t at = 0; at < w.bytes(); at += bytes) {
    auto* block = reinterpret_cast<unsigned char*>(w.view().data()) + at;
    const std::size_t row = at / w.view().stride_bytes();
    for (std::size_t i = 0; i < bytes; ++i)
      block[i] = static_cast<unsigned char>(row == 0 ? 0 : row == 1 ? 255 : rng());
    if (type == DType::kMXFP4) block[0] = static_cast<unsigned char>(120 + rng() % 16);
    if (has_f32_scale(type))
      put_f32_scale(type, std::ldexp(row % 2 == 0 ? 1.5f : -1.25f, static_cast<int>(rng() % 20) - 16), rng(), block);
    for (const std::size_t scale : scale_offsets(type)) {
      const std::uint16_t bits = f16(std::ldexp(row % 2 == 0 ? 1.5f : -1.25f, static_cast<int>(rng() % 20) - 16)).bits;
      std::memcpy(block + scale, &bits, 2);
    }
  }
  return w;
}

TEST(Gemm, EveryNumberOfRowsAndTypeFitsTheReference) {
  for (const DType w : kWeightTypes)
    for (const std::int64_t m : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33, 64})
      run_case({.m = m, .n_out = 37, .k = 96, .w = w});
}

TEST(Gemm, ManyRowsFitTheReference) {
  for (const DType w : kWeightTypes) run_case({.m = 257, .n_out = 67, .k = 64, .w = w, .x = DType::kBF16});
}

TEST(Gemm, EveryLengthOfRowFitsTheReference) {
  for (const DType w : kWeightTypes) {
    for (const std::int64_t k : {32, 64, 96, 512, 1408, 2048}) {
      for (const std::int64_t m : {1, 3, 9}) run_case({.m = m, .n_out = 13, .k = k, .w = w});
    }
  }
}

TEST(Gemm, LengthsThatFillNoVectorFitTheReference) {
  for (const DType w : {DType::kF32, DType::kF16, DType::kBF16})
    for (const std::int64_t k : {1, 2, 3, 5, 31, 33, 63, 129})
      for (const std::int64_t m : {1, 2, 8, 18}) run_case({.m = m, .n_out = 5, .k = k, .w = w});
}

TEST(Gemm, EveryNumberOfOutputsFitsTheReference) {
  for (const DType w : kWeightTypes)
    for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 129})
      for (const std::int64_t m : {1, 5, 11}) run_case({.m = m, .n_out = n, .k = 64, .w = w});
}

TEST(Gemm, BiasAccumulateAndStrideFitTheReference) {
  for (const DType w : kWeightTypes)
    for (const DType x : {DType::kF32, DType::kBF16})
      for (const std::int64_t m : {1, 7, 8, 35})
        for (const int flags : {1, 2, 3, 4, 5, 6, 7})
          run_case({.m = m,
                    .n_out = 19,
                    .k = 64,
                    .w = w,
                    .x = x,
                    .bias = (flags & 1) != 0,
                    .accumulate = (flags & 2) != 0,
                    .strided = (flags & 4) != 0});
}

TEST(Gemm, EveryNumberOfThreadsFitsTheReference) {
  for (const int threads : {1, 2, 3, 4})
    for (const DType w : {DType::kBF16, DType::kQ8_0})
      for (const std::int64_t m : {1, 7, 70})
        run_case({.m = m, .n_out = 200, .k = 256, .w = w, .bias = true, .threads = threads});
}

TEST(Gemm, EveryInstructionSetFitsTheReference) {
  each_target([] {
    for (const DType w : kWeightTypes)
      for (const std::int64_t m : {1, 2, 4, 7, 9, 40})
        for (const Rounding rounding : kRoundings)
          run_case({.m = m,
                    .n_out = 21,
                    .k = 160,
                    .w = w,
                    .bias = true,
                    .accumulate = true,
                    .strided = true,
                    .rounding = rounding});
  });
}

// The forms that gemm_cpu does not use on a CPU with better ones.
TEST(Gemm, PlainRowsKernelsFitTheReferenceOnEveryInstructionSet) {
  each_target([] {
    for (const DType type : kWeightTypes) {
      for (const SkinnyKernel* kernel : {&rows_kernel(type), &exact_rows_kernel()}) {
        for (const std::int64_t m : {1, 3, 4, 6, 8}) {
          constexpr std::int64_t kOut = 11;
          const std::int64_t kIn = whole_blocks(type, 224);
          const Tensor x = random_f32(m, kIn, 4), w = random_weights(type, kOut, kIn, 5);
          Tensor y(DType::kF32, {m, kOut});
          const WeightMatrix matrix{ConstTensorView(w)};
          const GemmOutput out{.w = &matrix, .y = y};
          gemm_ref(x, {&out, 1});
          Buffer prepared(kernel->prepared_bytes(m, kIn));
          kernel->prepare(x, prepared.data());
          float sums[8 * kOut];
          kernel->gemm(prepared.data(), m, w, 0, kOut, sums, kOut);
          const std::vector<double> norms = gemm_norms(x, w);
          for (std::int64_t i = 0; i < m; ++i) {
            for (std::int64_t r = 0; r < kOut; ++r) {
              const double norm = norms[i * kOut + r];
              ASSERT_LE(std::abs(static_cast<double>(sums[i * kOut + r] - y.as<float>()[i * kOut + r])),
                        tolerance(type, 1, Rounding::kFast, norm, kIn))
                  << dtype_name(type) << " m " << m;
            }
          }
        }
      }
    }
  });
}

// The path that gemm_cpu takes for bf16 weights and many rows, or always on a CPU with AMX, here for every type and for
// few rows too.
TEST(Gemm, OneDnnFitsTheReference) {
  if (!built_with_onednn() || bf16_tile_kernel() == nullptr) GTEST_SKIP() << "no oneDNN, or no bf16 GEMM on this CPU";
  for (const DType type : kWeightTypes) {
    if (type == DType::kF32 || type == DType::kF16) continue;
    for (const std::int64_t m : {1, 130, 258}) {
      if (kSanitized && m > 130) continue;
      constexpr std::int64_t kOut = 517;
      const std::int64_t kIn = whole_blocks(type, 64);
      const Tensor x = random_f32(m, kIn, 1), w = random_weights(type, kOut, kIn, 2), bias = random_f32(1, kOut, 3);
      const std::vector<double> norms = gemm_norms(x, w);
      const Tensor x16 = converted(x, DType::kBF16);
      const WeightMatrix matrix{ConstTensorView(w)};
      for (const int flags : {0, 1, 6}) {
        const std::int64_t stride = (flags & 4) != 0 ? kOut + 6 : kOut;
        Output expected(m, kOut, stride);
        const float* b = (flags & 1) != 0 ? bias.as<float>() : nullptr;
        const bool accumulate = (flags & 2) != 0;
        const GemmOutput ref_out{.w = &matrix, .y = expected.view, .bias = b, .accumulate = accumulate};
        gemm_ref(x, {&ref_out, 1});
        for (const int threads : {1, 2}) {
          SCOPED_TRACE(fmt::format("threads {} {} m {} flags {}", threads, dtype_name(type), m, flags));
          ThreadPool pool(threads);
          Output got(m, kOut, stride);
          const GemmOutput out{.w = &matrix, .y = got.view, .bias = b, .accumulate = accumulate};
          gemm_onednn(m % 2 == 0 ? x16 : x, {&out, 1}, pool);
          for (std::int64_t i = 0; i < m; ++i) {
            for (std::int64_t r = 0; r < kOut; ++r) {
              const float error = std::abs(got.view.row_as<float>(i)[r] - expected.view.row_as<float>(i)[r]);
              const double most = tolerance(type, 8, Rounding::kFast, norms[i * kOut + r], kIn) + 1e-6;
              if (!(error <= most)) FAIL() << error << " > " << most << " at row " << i << " column " << r;
            }
          }
        }
      }
    }
  }
}

TEST(Gemm, SeveralOutputsOfDifferentTypesComeFromOneCall) {
  ThreadPool pool(2);
  for (const Rounding rounding : kRoundings) {
    for (const std::int64_t m : {1, 6, 50}) {
      constexpr std::int64_t kIn = 256;
      const Tensor x = random_f32(m, kIn, 1);
      std::vector<Tensor> weights, got, expected;
      std::vector<WeightMatrix> matrices;
      std::vector<std::int64_t> sizes;
      for (int i = 0; i < 17; ++i) {  // more than one call splits at a time
        sizes.push_back(30 + 17 * i);
        weights.push_back(random_weights(kWeightTypes[i % std::size(kWeightTypes)], sizes.back(), kIn, 10 + i));
        matrices.emplace_back(ConstTensorView(weights.back()));
        got.emplace_back(DType::kF32, std::initializer_list<std::int64_t>{m, sizes.back()});
        expected.emplace_back(DType::kF32, std::initializer_list<std::int64_t>{m, sizes.back()});
      }
      std::vector<GemmOutput> got_out, expected_out;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        got_out.push_back({.w = &matrices[i], .y = got[i]});
        expected_out.push_back({.w = &matrices[i], .y = expected[i]});
      }
      gemm_cpu(x, got_out, {.pool = &pool, .rounding = rounding});
      gemm_ref(x, expected_out);
      for (std::size_t o = 0; o < sizes.size(); ++o) {
        const std::vector<double> norms = gemm_norms(x, weights[o]);
        for (std::int64_t j = 0; j < m * sizes[o]; ++j) {
          const double norm = norms[j];
          ASSERT_LE(std::abs(static_cast<double>(got[o].as<float>()[j] - expected[o].as<float>()[j])),
                    tolerance(kWeightTypes[o % std::size(kWeightTypes)], m, rounding, norm, kIn))
              << "output " << o << " element " << j;
        }
      }
    }
  }
}

// On average, not in the worst case: the error is at most twice that of arithmetic whose x and w are rounded to bf16.
TEST(Gemm, ErrorIsThatOfPlainBf16Arithmetic) {
  ThreadPool pool(1);
  for (const DType type : kWeightTypes) {
    for (const std::int64_t m : {4, 32}) {
      constexpr std::int64_t kOut = 64, kIn = 1024;
      const Tensor x = random_f32(m, kIn, 8), w = random_weights(type, kOut, kIn, 9);
      Tensor exact(DType::kF32, {m, kOut}), got(DType::kF32, {m, kOut}), plain(DType::kF32, {m, kOut});
      Tensor w32(DType::kF32, {kOut, kIn});
      for (std::int64_t r = 0; r < kOut; ++r) dequantise_row(w, r, w32.view().row_as<float>(r));
      const Tensor x16 = converted(x, DType::kBF16), w16 = converted(w32, DType::kBF16);
      const WeightMatrix matrix{ConstTensorView(w)}, rounded{ConstTensorView(w16)};
      const GemmOutput exact_out{.w = &matrix, .y = exact}, got_out{.w = &matrix, .y = got},
          plain_out{.w = &rounded, .y = plain};
      gemm_ref(x, {&exact_out, 1});
      gemm_ref(x16, {&plain_out, 1});
      gemm_cpu(x, {&got_out, 1}, {.pool = &pool});
      double error = 0.0, plain_error = 0.0;
      for (std::int64_t i = 0; i < m * kOut; ++i) {
        error += std::pow(double{got.as<float>()[i] - exact.as<float>()[i]}, 2);
        plain_error += std::pow(double{plain.as<float>()[i] - exact.as<float>()[i]}, 2);
      }
      EXPECT_LE(std::sqrt(error), 1.2 * std::sqrt(plain_error)) << dtype_name(type) << " m " << m;
      if (m < 8) {
        EXPECT_LE(std::sqrt(error), 0.05 * std::sqrt(plain_error)) << dtype_name(type);
      }
    }
  }
}

TEST(Gemm, FixedRoundingGivesARowTheSameBitsInEveryBatch) {
  each_target([] {
    for (const DType type : kWeightTypes) {
      constexpr std::int64_t kOut = 75, kRows = 70;
      const std::int64_t kIn = whole_blocks(type, 352);
      const Tensor x = random_f32(kRows, kIn, 1), w = random_weights(type, kOut, kIn, 2),
                   x16 = converted(x, DType::kBF16);
      const WeightMatrix matrix{ConstTensorView(w)};
      Tensor whole(DType::kF32, {kRows, kOut});
      ThreadPool two(2), three(3);
      const GemmOutput whole_out{.w = &matrix, .y = whole};
      gemm_cpu(x, {&whole_out, 1}, {.pool = &two, .rounding = Rounding::kFixed});
      for (const std::int64_t m : {1, 2, 7, 8, 15, 16, 17, 32, 33}) {
        for (const std::int64_t first : {std::int64_t{0}, std::int64_t{5}, kRows - m}) {
          Tensor part(DType::kF32, {m, kOut});
          const GemmOutput out{.w = &matrix, .y = part};
          // The dtype of x must not matter either, where the kernels round it to bf16.
          const bool narrow = bf16_tile_kernel() != nullptr && type != DType::kF32 && type != DType::kF16 && m % 2 == 0;
          const ConstTensorView rows = ConstTensorView(narrow ? x16 : x).rows(first, first + m);
          gemm_cpu(rows, {&out, 1}, {.pool = &three, .rounding = Rounding::kFixed});
          for (std::int64_t i = 0; i < m; ++i)
            ASSERT_EQ(std::memcmp(part.view().row(i), whole.view().row(first + i), kOut * 4), 0)
                << dtype_name(type) << " m " << m << " row " << i;
        }
      }
    }
  });
}

TEST(Gemm, NanAndInfinityGoThroughAsTheReferenceHasThem) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  ThreadPool pool(2);
  each_target([&] {
    for (const DType type : kWeightTypes) {
      for (const float bad : {inf, -inf, nan}) {
        for (const std::int64_t m : {1, 3, 12}) {
          constexpr std::int64_t kOut = 9;
          const std::int64_t kIn = whole_blocks(type, 64);
          const Tensor x = random_f32(m, kIn, 1), w = random_weights(type, kOut, kIn, 2);
          x.view().row_as<float>(m - 1)[17] = bad;
          const WeightMatrix matrix{ConstTensorView(w)};
          Tensor expected(DType::kF32, {m, kOut}), got(DType::kF32, {m, kOut});
          const GemmOutput ref_out{.w = &matrix, .y = expected}, cpu_out{.w = &matrix, .y = got};
          gemm_ref(x, {&ref_out, 1});
          gemm_cpu(x, {&cpu_out, 1}, {.pool = &pool});
          for (std::int64_t j = 0; j < m * kOut; ++j) {
            const float e = expected.as<float>()[j], g = got.as<float>()[j];
            if (std::isfinite(e))
              ASSERT_LE(std::abs(e - g), 0.5f) << dtype_name(type) << " m " << m << " element " << j;
            else
              ASSERT_TRUE(std::isnan(e) ? std::isnan(g) : e == g)
                  << dtype_name(type) << " m " << m << ": " << e << " " << g;
          }
        }
      }
    }
  });
}

TEST(Gemm, NanInAWeightReachesItsOutputAndNoOther) {
  ThreadPool pool(2);
  for (const DType type : kWeightTypes) {
    if (!can_quantise_to(type) || type == DType::kMXFP4) continue;  // not written, or has no NaN
    for (const std::int64_t m : {1, 3, 12}) {
      constexpr std::int64_t kOut = 9;
      const std::int64_t kIn = whole_blocks(type, 96);
      const Tensor x = random_f32(m, kIn, 1), w32 = random_f32(kOut, kIn, 2);
      w32.view().row_as<float>(4)[80] = std::numeric_limits<float>::quiet_NaN();
      const Tensor w = converted(w32, type);
      const WeightMatrix matrix{ConstTensorView(w)};
      Tensor got(DType::kF32, {m, kOut});
      const GemmOutput out{.w = &matrix, .y = got};
      gemm_cpu(x, {&out, 1}, {.pool = &pool});
      for (std::int64_t j = 0; j < m * kOut; ++j)
        ASSERT_EQ(std::isnan(got.as<float>()[j]), j % kOut == 4) << dtype_name(type) << " m " << m;
    }
  }
}

TEST(Gemm, HugeAndTinyBlocksKeepTheirOwnScale) {
  ThreadPool pool(1);
  for (const DType type : kQuantisedTypes) {
    constexpr std::int64_t kOut = 6;
    const std::int64_t kIn = whole_blocks(type, 128);
    const Tensor x = random_f32(2, kIn, 1), w = random_weights(type, kOut, kIn, 2);
    for (int j = 0; j < 32; ++j) {
      x.as<float>()[j] *= 1e30f;
      x.as<float>()[32 + j] *= 1e-20f;
      x.as<float>()[64 + j] = 0.0f;
    }
    const WeightMatrix matrix{ConstTensorView(w)};
    Tensor expected(DType::kF32, {2, kOut}), got(DType::kF32, {2, kOut});
    const GemmOutput ref_out{.w = &matrix, .y = expected}, cpu_out{.w = &matrix, .y = got};
    gemm_ref(x, {&ref_out, 1});
    gemm_cpu(x, {&cpu_out, 1}, {.pool = &pool});
    const std::vector<double> norms = gemm_norms(x, w);
    for (std::int64_t j = 0; j < 2 * kOut; ++j) {
      const double norm = norms[j];
      EXPECT_LE(std::abs(static_cast<double>(got.as<float>()[j]) - static_cast<double>(expected.as<float>()[j])),
                tolerance(type, 1, Rounding::kFast, norm, kIn));
    }
  }
}

TEST(Gemm, WeightsThatStartBetweenElementsAreCopied) {
  for (const DType type : kWeightTypes) {
    if (type == DType::kMXFP4) continue;  // bytes, at any address
    const std::int64_t k = whole_blocks(type, 64);
    const Tensor w = random_weights(type, 5, k, 3);
    Buffer shifted(w.bytes() + 1);
    std::memcpy(shifted.data() + 1, w.view().data(), w.bytes());
    const WeightMatrix matrix(ConstTensorView(shifted.data() + 1, type, {5, k}));
    EXPECT_NE(matrix.view().data(), shifted.data() + 1);
    EXPECT_EQ(std::memcmp(matrix.view().data(), w.view().data(), w.bytes()), 0);
    const WeightMatrix aligned{ConstTensorView(w)};
    EXPECT_EQ(aligned.view().data(), w.view().data()) << "an aligned matrix is viewed, not copied";
  }
}

TEST(Gemm, Mxfp4BlocksLieAtAnyAddress) {
  ThreadPool pool(1);
  const Tensor w = random_weights(DType::kMXFP4, 5, 96, 3), x = random_f32(2, 96, 1);
  Buffer shifted(w.bytes() + 1);
  std::memcpy(shifted.data() + 1, w.view().data(), w.bytes());
  const WeightMatrix moved(ConstTensorView(shifted.data() + 1, DType::kMXFP4, {5, 96})), plain{ConstTensorView(w)};
  EXPECT_EQ(moved.view().data(), shifted.data() + 1) << "viewed, not copied";
  Tensor a(DType::kF32, {2, 5}), b(DType::kF32, {2, 5});
  const GemmOutput out_a{.w = &moved, .y = a}, out_b{.w = &plain, .y = b};
  gemm_cpu(x, {&out_a, 1}, {.pool = &pool});
  gemm_cpu(x, {&out_b, 1}, {.pool = &pool});
  EXPECT_EQ(std::memcmp(a.view().data(), b.view().data(), a.bytes()), 0);
}

// Scales, minima and levels at the ends of what a block can hold, and rows of one block and of an odd number of them.
TEST(Gemm, BlocksOfAnyBitsFitTheReference) {
  ThreadPool pool(2);
  each_target([&] {
    for (const DType type : kQuantisedTypes) {
      for (const std::int64_t n_blocks : {1, 3, 9}) {
        constexpr std::int64_t kOut = 7;
        const std::int64_t k = n_blocks * dtype_info(type).block;
        for (const std::int64_t m : {1, 2, 3, 9}) {
          const Tensor x = random_f32(m, k, 5), w = blocks_of_any_bits(type, kOut, k);
          const WeightMatrix matrix{ConstTensorView(w)};
          Tensor expected(DType::kF32, {m, kOut}), got(DType::kF32, {m, kOut});
          const GemmOutput ref_out{.w = &matrix, .y = expected}, cpu_out{.w = &matrix, .y = got};
          gemm_ref(x, {&ref_out, 1});
          gemm_cpu(x, {&cpu_out, 1}, {.pool = &pool});
          const std::vector<double> norms = gemm_norms(x, w);
          for (std::int64_t j = 0; j < m * kOut; ++j)
            ASSERT_LE(std::abs(static_cast<double>(got.as<float>()[j]) - static_cast<double>(expected.as<float>()[j])),
                      tolerance(type, m, Rounding::kFast, norms[j], k))
                << dtype_name(type) << " blocks " << n_blocks << " m " << m << " element " << j;
        }
      }
    }
  });
}

TEST(Gemm, LongRowsTakeSeveralPasses) {
  // 16 MiB of packed x hold 257 rows of 32,640 in bf16 and half of that in f32.
  run_case({.m = 300, .n_out = 3, .k = 32640, .w = DType::kBF16, .threads = 2});
  run_case({.m = 150, .n_out = 3, .k = 32640, .w = DType::kF32, .threads = 2});
}

}  // namespace
}  // namespace mneme
