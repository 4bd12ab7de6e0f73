#include "src/ops/norm_rope/pointwise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/thread_pool.h"
#include "tests/ops/gemm/gemm_testing.h"
#include "tests/ops/simd/each_target.h"

namespace mneme {
namespace {

float value(const Tensor& t, std::int64_t i) {
  return t.view().dtype() == DType::kBF16 ? static_cast<float>(t.as<bf16>()[i]) : t.as<float>()[i];
}

// f32: a few roundings. bf16: the last rounding, which a neighbouring f32 may tip to the other side.
void expect_close(const Tensor& got, const Tensor& expected, std::int64_t n, float absolute = 1e-37f) {
  const float relative = got.view().dtype() == DType::kBF16 ? 0x1p-7f : 4e-6f;
  for (std::int64_t i = 0; i < n; ++i) {
    const float e = value(expected, i), g = value(got, i);
    ASSERT_LE(std::abs(e - g), relative * std::abs(e) + absolute) << "value " << i;
  }
}

TEST(RmsNorm, FitsTheReferenceOnEveryInstructionSet) {
  ThreadPool pool(3);
  each_target([&] {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const auto& [n, h] : {std::pair{0, 8}, {1, 1}, {1, 7}, {3, 64}, {5, 67}, {1, 4096}, {40, 512}, {67, 896}}) {
        SCOPED_TRACE(fmt::format("n {} h {} {}", n, h, dtype_name(type)));
        const Tensor x = random_f32(std::max(n, 1), h, 1), weight = random_f32(1, h, 2);
        Tensor got(type, {n, h}), expected(type, {n, h});
        const ConstTensorView rows = ConstTensorView(x).rows(0, n);
        rms_norm_ref(rows, weight.as<float>(), 1e-5, expected);
        rms_norm_cpu(rows, weight.as<float>(), 1e-5, got, {.pool = &pool});
        expect_close(got, expected, std::int64_t{n} * h);
      }
    }
  });
}

TEST(RmsNorm, WorksInPlaceAndOnStridedRows) {
  ThreadPool pool(2);
  constexpr std::int64_t kRows = 5, kWidth = 48, kStride = 60;
  const Tensor x = random_f32(kRows, kStride, 1), weight = random_f32(1, kWidth, 2),
               original = random_f32(kRows, kStride, 1);
  const TensorView view = TensorView(x.view().data(), DType::kF32, {kRows, kWidth}).with_stride(kStride * 4);
  Tensor expected(DType::kF32, {kRows, kWidth});
  rms_norm_ref(view, weight.as<float>(), 1e-6, expected);
  rms_norm_cpu(view, weight.as<float>(), 1e-6, view, {.pool = &pool});
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < kWidth; ++j)
      ASSERT_LE(std::abs(view.row_as<float>(i)[j] - expected.view().row_as<float>(i)[j]), 1e-5f);
    for (std::int64_t j = kWidth; j < kStride; ++j)
      ASSERT_EQ(x.view().row_as<float>(i)[j], original.view().row_as<float>(i)[j]);
  }
}

TEST(RmsNorm, ZeroRowIsZeroAndNanStaysInItsRow) {
  ThreadPool pool(1);
  Tensor x = random_f32(3, 64, 1);
  const Tensor weight = random_f32(1, 64, 2);
  std::memset(x.view().row(0), 0, 64 * 4);
  x.view().row_as<float>(1)[9] = std::numeric_limits<float>::quiet_NaN();
  Tensor y(DType::kF32, {3, 64});
  rms_norm_cpu(x, weight.as<float>(), 1e-6, y, {.pool = &pool});
  for (int j = 0; j < 64; ++j) {
    EXPECT_EQ(y.view().row_as<float>(0)[j], 0.0f);
    EXPECT_TRUE(std::isnan(y.view().row_as<float>(1)[j]));
    EXPECT_TRUE(std::isfinite(y.view().row_as<float>(2)[j]));
  }
}

TEST(RmsNorm, SmallValuesAreHeldUpByEpsilon) {
  ThreadPool pool(1);
  Tensor x(DType::kF32, {1, 32}), weight(DType::kF32, {1, 32}), y(DType::kF32, {1, 32});
  for (int j = 0; j < 32; ++j) {
    x.as<float>()[j] = 1e-6f;
    weight.as<float>()[j] = 1.0f;
  }
  rms_norm_cpu(x, weight.as<float>(), 1e-6, y, {.pool = &pool});
  EXPECT_NEAR(y.as<float>()[0], 1e-6 / std::sqrt(1e-12 + 1e-6), 1e-8);
}

// absolute: the exponent of e^-60 has lost four bits of it to rounding.
struct Gated {
  void (*ref)(const ConstTensorView&, const ConstTensorView&, const TensorView&);
  void (*cpu)(const ConstTensorView&, const ConstTensorView&, const TensorView&, const CpuContext&);
  float absolute;
};
constexpr Gated kSwiglu{swiglu_ref, swiglu_cpu, 1e-37f}, kGeglu{geglu_ref, geglu_cpu, 1e-12f};

void expect_fits_the_reference(const Gated& op) {
  ThreadPool pool(3);
  each_target([&] {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const auto& [n, ffn] : {std::pair{0, 8}, {1, 1}, {2, 17}, {3, 1408}, {29, 1031}}) {
        SCOPED_TRACE(fmt::format("n {} ffn {} {}", n, ffn, dtype_name(type)));
        // gate and up adjacent in one row, as in the model
        const Tensor both = random_f32(std::max(n, 1), 2 * ffn, 1);
        for (std::int64_t i = 0; i < std::int64_t{n} * 2 * ffn; ++i) both.as<float>()[i] *= 6.0f;
        const auto stride = static_cast<std::size_t>(2 * ffn) * 4;
        const ConstTensorView gate = ConstTensorView(both.view().data(), DType::kF32, {n, ffn}).with_stride(stride);
        const ConstTensorView up =
            ConstTensorView(both.view().data() + ffn * 4, DType::kF32, {n, ffn}).with_stride(stride);
        Tensor got(type, {n, ffn}), expected(type, {n, ffn});
        op.ref(gate, up, expected);
        op.cpu(gate, up, got, {.pool = &pool});
        expect_close(got, expected, std::int64_t{n} * ffn, op.absolute);
      }
    }
  });
}

TEST(Swiglu, FitsTheReferenceOnEveryInstructionSet) {
  expect_fits_the_reference(kSwiglu);
}

TEST(Geglu, FitsTheReferenceOnEveryInstructionSet) {
  expect_fits_the_reference(kGeglu);
}

TEST(Geglu, ValuesAreThoseOfTheTanhForm) {
  // torch.nn.functional.gelu(approximate='tanh') in float64
  const std::vector<float> gate = {1.0f, -1.0f, 0.5f, -3.0f, 2.0f}, up(5, 1.0f);
  const std::vector<double> expected = {0.8411919906082768, -0.15880800939172324, 0.34571400982514394,
                                        -0.0036373920817729943, 1.9545976940871754};
  ThreadPool pool(1);
  Tensor got(DType::kF32, {1, 5});
  geglu_cpu(view_of(gate.data(), {1, 5}), view_of(up.data(), {1, 5}), got, {.pool = &pool});
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got.as<float>()[i], expected[i], 2e-7);
}

TEST(SoftCap, IsTheCapTimesTanhOnEveryInstructionSet) {
  ThreadPool pool(3);
  each_target([&] {
    const Tensor x = random_f32(7, 5003, 1);
    std::span<float> values(x.as<float>(), 7 * 5003);
    for (float& v : values) v *= 60.0f;
    values[0] = 0.0f, values[1] = 1e30f, values[2] = -1e30f, values[3] = std::numeric_limits<float>::quiet_NaN();
    values[4] = values.back() = -std::numeric_limits<float>::infinity();
    const std::vector<float> before(values.begin(), values.end());
    soft_cap_cpu(values, 30.0f, {.pool = &pool});
    EXPECT_TRUE(std::isnan(values[3]));
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (i == 3) continue;
      ASSERT_NEAR(values[i], 30.0 * std::tanh(before[i] / 30.0), 8e-6) << before[i];
    }
  });
}

TEST(Swiglu, ClampedFitsTheReferenceOnEveryInstructionSet) {
  ThreadPool pool(3);
  each_target([&] {
    for (const auto& [n, ffn] : {std::pair{0, 8}, {1, 1}, {2, 17}, {29, 1031}}) {
      const Tensor gate = random_f32(std::max(n, 1), ffn, 1), up = random_f32(std::max(n, 1), ffn, 2);
      for (std::int64_t i = 0; i < std::int64_t{n} * ffn; ++i) gate.as<float>()[i] *= 6.0f, up.as<float>()[i] *= 6.0f;
      const ConstTensorView g(gate.view().data(), DType::kF32, {n, ffn}), u(up.view().data(), DType::kF32, {n, ffn});
      Tensor got(DType::kF32, {n, ffn}), expected(DType::kF32, {n, ffn});
      clamped_swiglu_ref(g, u, 7.0f, expected);
      clamped_swiglu_cpu(g, u, 7.0f, got, {.pool = &pool});
      expect_close(got, expected, std::int64_t{n} * ffn);
    }
    std::vector<float> gates = {100.0f, -100.0f, 7.0f, 0.0f, NAN, 1.0f},
                       ups = {100.0f, -100.0f, -1.0f, 3.0f, 1.0f, NAN};
    Tensor got(DType::kF32, {1, 6});
    clamped_swiglu_cpu(view_of(static_cast<const float*>(gates.data()), {1, 6}),
                       view_of(static_cast<const float*>(ups.data()), {1, 6}), 7.0f, got, {.pool = &pool});
    EXPECT_NEAR(got.as<float>()[0], 8.0f * 7.0f, 1e-3f) << "both cut off";
    EXPECT_NEAR(got.as<float>()[1], 0.0f, 1e-3f) << "the gate has no lower limit";
    EXPECT_EQ(got.as<float>()[2], 0.0f) << "up + 1";
    EXPECT_TRUE(std::isnan(got.as<float>()[4]) && std::isnan(got.as<float>()[5]));
  });
}

void expect_extremes_of_the_reference(const Gated& op) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> gates = {0.0f,
                                    -0.0f,
                                    1.0f,
                                    -1.0f,
                                    20.0f,
                                    -20.0f,
                                    87.0f,
                                    -87.0f,
                                    88.8f,
                                    -88.8f,
                                    104.0f,
                                    -104.0f,
                                    1e4f,
                                    -1e4f,
                                    3e38f,
                                    -3e38f,
                                    inf,
                                    -inf,
                                    std::numeric_limits<float>::quiet_NaN()};
  ThreadPool pool(1);
  each_target([&] {
    // twice, so that the values pass through the vector loop and the remainder
    std::vector<float> gate = gates, up(2 * gates.size(), 1.5f);
    gate.insert(gate.end(), gates.begin(), gates.end());
    const std::int64_t n = gate.size();
    const ConstTensorView g = view_of(static_cast<const float*>(gate.data()), {1, n}),
                          u = view_of(static_cast<const float*>(up.data()), {1, n});
    Tensor got(DType::kF32, {1, n}), expected(DType::kF32, {1, n});
    op.ref(g, u, expected);
    op.cpu(g, u, got, {.pool = &pool});
    for (std::int64_t i = 0; i < n; ++i) {
      const float e = expected.as<float>()[i], v = got.as<float>()[i];
      // Below -88 silu is under 1e-36, and exp has left the normal f32 range.
      if (std::isfinite(e))
        EXPECT_LE(std::abs(e - v), 4e-6f * std::abs(e) + 1e-36f) << gate[i];
      else
        EXPECT_TRUE(std::isnan(e) ? std::isnan(v) : e == v) << gate[i] << " gives " << v;
    }
  });
}

TEST(Swiglu, ExtremesAreThoseOfTheReference) {
  expect_extremes_of_the_reference(kSwiglu);
}

TEST(Geglu, ExtremesAreThoseOfTheReference) {
  expect_extremes_of_the_reference(kGeglu);
}

TEST(Embed, RowsAreTheTablesOnEveryInstructionSet) {
  ThreadPool pool(2);
  each_target([&] {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
      const Tensor table = random_weights(type, 50, 320, 3);
      std::vector<std::int32_t> ids;
      for (int i = 0; i < 120; ++i) ids.push_back(i * 37 % 50);
      for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{120}}) {
        Tensor got(DType::kF32, {static_cast<std::int64_t>(n), 320}),
            expected(DType::kF32, {static_cast<std::int64_t>(n), 320});
        const std::span<const std::int32_t> some(ids.data(), n);
        embed_ref(some, table, expected);
        embed_cpu(some, table, got, {.pool = &pool});
        if (n > 0) {
          ASSERT_EQ(std::memcmp(got.view().data(), expected.view().data(), n * 320 * 4), 0) << dtype_name(type);
        }
      }
    }
  });
}

}  // namespace
}  // namespace mneme
