#include "src/ops/gemm/quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/ops/gemm/gemm.h"
#include "src/ops/gemm/gemm_kernels.h"
#include "tests/ops/gemm/gemm_testing.h"
#include "tests/ops/simd/each_target.h"

namespace mneme {
namespace {

TEST(Quant, Q8BlockOfKnownValues) {
  float x[32] = {};
  x[0] = 127.0f;  // d = 1
  x[1] = -2.5f;   // a half rounds away from zero
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
  x[2] = 7.9f;   // would be level 16: clamped
  x[3] = -0.5f;  // a half rounds up: level 8
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

TEST(Quant, Q41BlockOfKnownValues) {
  float x[32] = {};
  x[0] = -5.0f;  // m, level 0
  x[1] = 10.0f;  // d = 15 / 15 = 1, level 15
  x[2] = 0.5f;   // 5.5 steps above m; a half goes up: level 6
  x[16] = 3.2f;  // level 8, high nibble of byte 0
  BlockQ4_1 block;
  quantise_rows(view_of(static_cast<const float*>(x), {1, 32}),
                TensorView(reinterpret_cast<std::byte*>(&block), DType::kQ4_1, {1, 32}));
  EXPECT_EQ(static_cast<float>(block.d), 1.0f);
  EXPECT_EQ(static_cast<float>(block.m), -5.0f);
  EXPECT_EQ(block.q[0], 0 | (8 << 4));
  EXPECT_EQ(block.q[1], 15 | (5 << 4));
  EXPECT_EQ(block.q[2], 6 | (5 << 4));
  const auto bytes = std::bit_cast<std::array<std::uint8_t, sizeof(block)>>(block);
  EXPECT_EQ((std::array{bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]}),
            (std::array<std::uint8_t, 5>{0x00, 0x3c, 0x00, 0xc5, 0x80}));  // f16 1, f16 -5, levels 0 and 8
}

float float_of_hex(const std::string& word) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(word, nullptr, 16)));
}

// numbers() of tools/make_quant_goldens.py.
std::vector<float> golden_input(const std::string& name) {
  std::uint32_t state = 7;
  std::vector<float> out(256);
  for (std::size_t i = 0; i < out.size(); ++i) {
    state = 1664525u * state + 1013904223u;
    const float x = static_cast<float>(state >> 16) / 32768.0f - 1.0f;
    out[i] = name == "cubes"                    ? x * x * x
             : name == "positive"               ? x + 3.0f
             : name == "negative"               ? x - 3.0f
             : name == "every other group zero" ? (i / 16 % 2 == 0 ? x : 0.0f)
             : name == "tiny"                   ? x * 0x1p-20f
             : name == "large"                  ? x * 0x1p12f
                                                : x;
  }
  return out;
}

// CRC-32 of the values' bytes, every NaN the same.
std::uint32_t crc_of(const std::vector<float>& values) {
  std::uint32_t crc = 0xffffffffu;
  for (const float v : values) {
    const std::uint32_t bits = std::isnan(v) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(v);
    for (int byte = 0; byte < 4; ++byte) {
      crc ^= bits >> (8 * byte) & 0xff;
      for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320u : 0);
    }
  }
  return ~crc;
}

DType quantised_type(const std::string& name) {
  for (const DType t : kQuantisedTypes)
    if (dtype_name(t) == name) return t;
  ADD_FAILURE() << "no type " << name;
  return DType::kF32;
}

// tools/make_quant_goldens.py: the same blocks by the gguf package and by ggml, bit for bit.
TEST(Quant, BlocksAreThoseOfTheGgufPackage) {
  std::ifstream file(MNEME_SOURCE_DIR "/tests/ops/gemm/data/quant-blocks.json");
  const nlohmann::json entries = nlohmann::json::parse(file);
  int with_x = 0, by_ggml = 0, with_crc = 0;
  for (const auto& entry : entries) {
    SCOPED_TRACE(entry["type"].get<std::string>() + ": " + entry["name"].get<std::string>());
    const DType type = quantised_type(entry["type"].get<std::string>());
    ASSERT_TRUE(is_quantised(type));
    const auto hex = entry["block"].get<std::string>();
    const auto& info = dtype_info(type);
    const auto k = std::ssize(hex) / 2 / info.bytes * info.block;
    const Tensor block(type, {1, k});
    ASSERT_EQ(hex.size(), 2 * block.bytes());
    for (std::size_t i = 0; i < block.bytes(); ++i)
      block.view().data()[i] = static_cast<std::byte>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
    std::vector<float> values(k);
    dequantise_row(block, 0, values.data());
    if (entry.contains("values")) {
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], float_of_hex(entry["values"][i].get<std::string>())) << "value " << i;
    }
    if (entry.contains("crc")) {
      ++with_crc;
      EXPECT_EQ(crc_of(values), std::stoul(entry["crc"].get<std::string>(), nullptr, 16));
    }
    std::vector<float> x;
    if (entry.contains("x")) {
      ++with_x;
      for (const auto& word : entry["x"]) x.push_back(float_of_hex(word.get<std::string>()));
    } else if (entry.contains("input")) {
      ++by_ggml;
      x = golden_input(entry["input"].get<std::string>());
    } else {
      continue;
    }
    const Tensor made = converted(view_of(static_cast<const float*>(x.data()), {1, k}), type);
    EXPECT_EQ(std::memcmp(made.view().data(), block.view().data(), block.bytes()), 0);
  }
  EXPECT_EQ(with_x, 72);
  EXPECT_EQ(by_ggml, 42);
  EXPECT_EQ(with_crc, 257);
}

// A value of each type by hand, at the places where its packing turns: index of the value, and what the table of quant.h
// says it is.
TEST(Quant, BlocksOfKnownBits) {
  const auto values_of = [](DType type, const void* block) {
    std::vector<float> out(dtype_info(type).block);
    dequantise_row(ConstTensorView(static_cast<const std::byte*>(block), type, {1, dtype_info(type).block}), 0,
                   out.data());
    return out;
  };
  BlockQ5_0 q5{f16(2.0f), {0x01, 0, 0x02, 0}, {0x5a}};
  std::vector<float> v = values_of(DType::kQ5_0, &q5);
  EXPECT_EQ(v[0], 2.0f * (10 + 16 - 16));
  EXPECT_EQ(v[16], 2.0f * (5 - 16));
  EXPECT_EQ(v[17], 2.0f * (0 + 16 - 16));
  BlockMXFP4 fp4{128, {0xf7}};
  v = values_of(DType::kMXFP4, &fp4);
  EXPECT_EQ(v[0], 12.0f);
  EXPECT_EQ(v[16], -12.0f);
  BlockNVFP4 nv{0.25f, {0x38, 0x40, 0x01, 0x77}, {0xf7}};  // scales 1, 2, 2^-9, 240
  nv.q[31] = 0x2d;
  v = values_of(DType::kNVFP4, &nv);
  EXPECT_EQ(v[0], 0.25f * 6);
  EXPECT_EQ(v[16], 0.25f * 2 * -6);
  EXPECT_EQ(v[47], 0.25f * 0x1p-9f * -3);
  EXPECT_EQ(v[63], 0.25f * 240);
  BlockQ4_K q4{};
  q4.d = f16(1.0f), q4.dmin = f16(0.5f);
  q4.s[1] = 0x80 | 3, q4.s[5] = 0x40 | 2, q4.s[9] = 0x75;  // group 1: 3 and 2; group 5: 5 + 32 and 7 + 16
  q4.q[4] = 0xe1, q4.q[64 + 4] = 0xe1;
  v = values_of(DType::kQ4_K, &q4);
  EXPECT_EQ(v[32 + 4], 3.0f * 14 - 1.0f);
  EXPECT_EQ(v[160 + 4], 37.0f * 14 - 11.5f);
  BlockQ6_K q6{};
  q6.d = f16(0.25f), q6.s[15] = -3, q6.l[64 + 63] = 0x9f, q6.h[32 + 31] = 0xc0;
  v = values_of(DType::kQ6_K, &q6);
  EXPECT_EQ(v[255], 0.25f * -3 * (9 + 48 - 32));
  BlockQ3_K q3{};
  q3.d = f16(1.0f), q3.s[7] = 0x50, q3.s[11] = 0xc0, q3.q[63] = 0x80, q3.h[31] = 0x80;
  v = values_of(DType::kQ3_K, &q3);
  EXPECT_EQ(v[255], (5 + 48 - 32) * (2 - 4 + 4.0f));
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

// Root mean square error over that of the values, of normal weights: measured on these, which ggml rounds to the same
// bits.
TEST(Quant, ErrorOfNormalWeightsStaysWhatItIs) {
  const std::pair<DType, double> kMost[] = {{DType::kQ8_0, 0.006}, {DType::kQ6_K, 0.019}, {DType::kQ5_0, 0.044},
                                            {DType::kQ5_1, 0.041}, {DType::kQ5_K, 0.037}, {DType::kQ4_0, 0.088},
                                            {DType::kQ4_1, 0.085}, {DType::kQ4_K, 0.074}, {DType::kIQ4_NL, 0.078},
                                            {DType::kMXFP4, 0.13}, {DType::kQ3_K, 0.16},  {DType::kQ2_K, 0.31}};
  const Tensor x = random_f32(8, 4096, 1);
  for (const auto& [type, most] : kMost) {
    const Tensor q = converted(x, type);
    std::vector<float> back(4096);
    double error = 0.0, square = 0.0;
    for (std::int64_t i = 0; i < 8; ++i) {
      dequantise_row(q, i, back.data());
      for (std::size_t j = 0; j < back.size(); ++j) {
        const double v = x.view().row_as<float>(i)[j];
        error += std::pow(back[j] - v, 2);
        square += v * v;
      }
    }
    EXPECT_LE(std::sqrt(error / square), most) << dtype_name(type);
    EXPECT_GE(std::sqrt(error / square), most / 1.3) << dtype_name(type) << ": the bound is too loose";
  }
}

TEST(Quant, ErrorIsAtMostHalfAStep) {
  const Tensor x = random_f32(20, 256, 1);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    const Tensor q = converted(x, type);
    std::vector<float> back(256);
    for (std::int64_t i = 0; i < 20; ++i) {
      dequantise_row(q, i, back.data());
      for (std::int64_t b = 0; b < 8; ++b) {
        const float* v = x.view().row_as<float>(i) + b * 32;
        float largest = 0.0f;
        for (int j = 0; j < 32; ++j) largest = std::max(largest, std::fabs(v[j]));
        // q4_0 clamps to 7 steps on the side opposite its largest value: an error of up to a whole step. Scale and
        // minimum themselves are rounded to f16.
        const auto [low, high] = std::minmax_element(v, v + 32);
        const float step = type == DType::kQ8_0   ? largest / 127.0f * 0.5f
                           : type == DType::kQ4_0 ? largest / 8.0f
                                                  : (*high - *low) / 15.0f * 0.5f;
        const float rounding = (type == DType::kQ4_1 ? largest + *high - *low : largest) * 0x1p-11f;
        for (int j = 0; j < 32; ++j) ASSERT_LE(std::fabs(v[j] - back[b * 32 + j]), step * 1.001f + rounding);
      }
    }
  }
}

TEST(Quant, ZerosStayZeros) {
  const float x[256] = {};
  for (const DType type : kQuantisedTypes) {
    if (!can_quantise_to(type)) continue;
    Tensor q(type, {1, 256});
    quantise_rows(view_of(x, {1, 256}), q);
    float back[256];
    dequantise_row(q, 0, back);
    for (const float v : back) EXPECT_EQ(v, 0.0f) << dtype_name(type);
  }
}

TEST(Quant, BlockWithNanOrInfinityIsAllNanAndItsNeighbourIsNot) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const DType type : kQuantisedTypes) {
      if (!can_quantise_to(type)) continue;
      const int block = dtype_info(type).block;
      const Tensor x = random_f32(1, 2 * block, 1);
      x.as<float>()[block + 8] = bad;
      const Tensor q = converted(x, type);
      std::vector<float> back(2 * block);
      dequantise_row(q, 0, back.data());
      // mxfp4 has no NaN, but is as visible.
      for (int j = 0; j < 2 * block; ++j) {
        const float v = back[j];
        EXPECT_EQ(type == DType::kMXFP4 ? std::isinf(v) : std::isnan(v), j >= block) << dtype_name(type);
      }
    }
  }
}

TEST(Quant, SubnormalBlocksStayDefined) {
  Tensor x(DType::kF32, {1, 256});
  for (int j = 0; j < 256; ++j) x.as<float>()[j] = static_cast<float>(j % 32 - 16) * 1e-42f;
  for (const DType type : kQuantisedTypes) {
    if (!can_quantise_to(type)) continue;
    const Tensor q = converted(x, type);
    float back[256];
    dequantise_row(q, 0, back);
    // The scale is below the smallest f16; mxfp4's smallest value is 2^-128.
    for (const float v : back) EXPECT_EQ(v, 0.0f) << dtype_name(type);
  }
}

TEST(Quant, RowsInVectorsAreTheScalarRowsBitForBit) {
  each_target([] {
    for (const DType type : kWeightTypes) {
      for (const std::int64_t length : {32, 96, 1408}) {
        const std::int64_t k = whole_blocks(type, length);
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
