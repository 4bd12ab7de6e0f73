#include "src/kernels/quant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/kernels/matmul.h"
#include "src/kernels/matmul_kernels.h"
#include "tests/kernels/each_target.h"
#include "tests/kernels/matmul_testing.h"

namespace mneme {
namespace {

TEST(Quant, Q8BlockOfKnownValues) {
  float x[32] = {};
  x[0] = 127.0f;  // d = 1
  x[1] = -2.5f;   // a half goes away from zero
  x[2] = 2.5f;
  x[3] = 0.49f;
  x[31] = -126.6f;
  BlockQ8_0 block;
  quantise_rows(view_of(static_cast<const float*>(x), {1, 32}),
                TensorView(reinterpret_cast<std::byte*>(&block), DType::kQ8_0, {1, 32}));
  EXPECT_EQ(static_cast<float>(block.d), 1.0f);
  EXPECT_EQ(block.q[0], 127);
  EXPECT_EQ(block.q[1], -3);
  EXPECT_EQ(block.q[2], 3);
  EXPECT_EQ(block.q[3], 0);
  EXPECT_EQ(block.q[31], -127);
}

TEST(Quant, Q4BlockOfKnownValues) {
  float x[32] = {};
  x[0] = -8.0f;  // the largest magnitude is negative: d = 1, level 0
  x[1] = 7.0f;   // level 15
  x[2] = 7.9f;   // would be level 16: capped
  x[3] = -0.5f;  // a half goes up: level 8
  x[16] = 3.2f;  // level 11, high nibble of byte 0
  BlockQ4_0 block;
  quantise_rows(view_of(static_cast<const float*>(x), {1, 32}),
                TensorView(reinterpret_cast<std::byte*>(&block), DType::kQ4_0, {1, 32}));
  EXPECT_EQ(static_cast<float>(block.d), 1.0f);
  EXPECT_EQ(block.q[0], 0 | (11 << 4));
  EXPECT_EQ(block.q[1], 15 | (8 << 4));
  EXPECT_EQ(block.q[2], 15 | (8 << 4));
  EXPECT_EQ(block.q[3], 8 | (8 << 4));
}

TEST(Quant, Q4ScaleTakesTheSignOfTheLargestSoThatItsLevelIsZero) {
  float x[32] = {};
  x[5] = 4.0f;
  BlockQ4_0 block;
  quantise_rows(view_of(static_cast<const float*>(x), {1, 32}),
                TensorView(reinterpret_cast<std::byte*>(&block), DType::kQ4_0, {1, 32}));
  EXPECT_EQ(static_cast<float>(block.d), -0.5f);
  EXPECT_EQ(block.q[5] & 15, 0);
}

TEST(Quant, ErrorIsAtMostHalfAStep) {
  const Tensor x = random_f32(20, 256, 1);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    const Tensor q = converted(x, type);
    std::vector<float> back(256);
    for (std::int64_t i = 0; i < 20; ++i) {
      dequantise_row(q, i, back.data());
      for (std::int64_t b = 0; b < 8; ++b) {
        const float* v = x.view().row_as<float>(i) + b * 32;
        float largest = 0.0f;
        for (int j = 0; j < 32; ++j) largest = std::max(largest, std::fabs(v[j]));
        // q4_0 caps at 7 steps on the side away from its largest: a whole step at most. The scale itself is rounded to
        // f16.
        const float step = type == DType::kQ8_0 ? largest / 127.0f * 0.5f : largest / 8.0f;
        for (int j = 0; j < 32; ++j)
          ASSERT_LE(std::fabs(v[j] - back[static_cast<std::size_t>(b * 32 + j)]), step * 1.001f + largest * 0x1p-11f);
      }
    }
  }
}

TEST(Quant, ZerosStayZeros) {
  const float x[32] = {};
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    Tensor q(type, {1, 32});
    quantise_rows(view_of(x, {1, 32}), q);
    float back[32];
    dequantise_row(q, 0, back);
    for (const float v : back) EXPECT_EQ(v, 0.0f);
  }
}

TEST(Quant, BlockWithNanOrInfinityIsAllNanAndItsNeighbourIsNot) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
      const Tensor x = random_f32(1, 64, 1);
      x.as<float>()[40] = bad;
      const Tensor q = converted(x, type);
      float back[64];
      dequantise_row(q, 0, back);
      for (int j = 0; j < 64; ++j) EXPECT_EQ(std::isnan(back[j]), j >= 32);
    }
  }
}

TEST(Quant, SubnormalBlocksStayDefined) {
  Tensor x(DType::kF32, {1, 32});
  for (int j = 0; j < 32; ++j) x.as<float>()[j] = static_cast<float>(j - 16) * 1e-42f;
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    const Tensor q = converted(x, type);
    float back[32];
    dequantise_row(q, 0, back);
    for (const float v : back) EXPECT_EQ(v, 0.0f);  // the scale is below the smallest f16
  }
}

TEST(Quant, RowsInVectorsAreTheScalarRowsBitForBit) {
  each_target([] {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
      for (const std::int64_t k : {32, 96, 1408}) {
        const Tensor w = random_weights(type, 3, k, 7);
        Tensor scalar(DType::kF32, {3, k}), vectors(DType::kF32, {3, k}), narrow(DType::kBF16, {3, k});
        for (std::int64_t r = 0; r < 3; ++r) dequantise_row(w, r, scalar.view().row_as<float>(r));
        convert_rows(w, 0, 3, DType::kF32, vectors.view().data());
        ASSERT_EQ(std::memcmp(scalar.view().data(), vectors.view().data(), scalar.bytes()), 0) << dtype_name(type);
        convert_rows(w, 0, 3, DType::kBF16, narrow.view().data());
        const Tensor expected = converted(scalar, DType::kBF16);
        ASSERT_EQ(std::memcmp(expected.view().data(), narrow.view().data(), narrow.bytes()), 0) << dtype_name(type);
      }
    }
  });
}

TEST(Quant, RoundingToBf16InVectorsIsTheScalarRoundingForEverySpecialValue) {
  const std::uint32_t bits[] = {0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x3f808000, 0x3f818000,
                                0x3f807fff, 0x3f808001, 0x7f7fffff, 0x7f7f8000, 0x7f7f7fff, 0x7f800000,
                                0xff800000, 0x7f800001, 0x7fffffff, 0xffc00000};
  each_target([&] {
    Tensor x(DType::kF32, {1, 32}), y(DType::kBF16, {1, 32});
    for (int j = 0; j < 32; ++j) x.as<float>()[j] = std::bit_cast<float>(bits[j % 16]);
    convert_rows(x, 0, 1, DType::kBF16, y.view().data());
    for (int j = 0; j < 32; ++j)
      ASSERT_EQ(y.as<bf16>()[j].bits, bf16(x.as<float>()[j]).bits) << std::hex << bits[j % 16];
  });
}

}  // namespace
}  // namespace mneme
