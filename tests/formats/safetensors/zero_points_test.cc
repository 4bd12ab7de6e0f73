// All zero points of 4 bits in every format that has them, and in both ways in which gptq folders have them.
#include <gtest/gtest.h>

#include <cmath>

#include "src/base/rng.h"
#include "src/formats/checkpoint.h"
#include "src/formats/safetensors/quantised.h"
#include "src/ops/gemm/gemm.h"
#include "src/ops/gemm/quant.h"
#include "tests/formats/safetensors/hf_builder.h"

namespace mneme::test {
namespace {

constexpr std::int64_t kN = 32, kK = 256, kGroup = 32, kGroups = kK / kGroup;
constexpr int kAwqOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};

enum class Packing { kV2, kWord, kNibble, kAwq, kCompressedTensors };

// A matrix of codes whose mean in each group is near the group's zero point, as weights around 0 have it. Zero point
// 5 (r + g) % 16: all sixteen; beside 0 in a word lies 5, by which the ways of packing are told apart.
struct Codes {
  std::vector<int> q, zeros;
  static int zero_of(std::int64_t r, std::int64_t g) { return static_cast<int>(5 * (r + g) % 16); }
  Codes() : q(kN * kK) {
    Rng rng(3);
    for (std::int64_t r = 0; r < kN; ++r)
      for (std::int64_t c = 0; c < kK; ++c)
        q[r * kK + c] = std::clamp(zero_of(r, c / kGroup) + static_cast<int>(std::lround(2.0 * rng.normal())), 0, 15);
  }
};

void append_word(std::string& out, std::uint32_t word) {
  out.append(reinterpret_cast<const char*>(&word), 4);
}

// Eight nibbles a word.
template <typename Nibble>
std::uint32_t word_of(Nibble nibble) {
  std::uint32_t word = 0;
  for (int i = 0; i < 8; ++i) word |= static_cast<std::uint32_t>(nibble(i)) << (4 * i);
  return word;
}

std::string packed_zeros(Packing packing) {
  std::string out;
  for (std::int64_t g = 0; g < kGroups; ++g)
    for (std::int64_t w = 0; w < kN / 8; ++w) {
      const auto zero = [&](int i) { return Codes::zero_of(8 * w + i, g); };
      if (packing == Packing::kNibble)
        append_word(out, word_of([&](int i) { return (zero(i) + 15) % 16; }));
      else if (packing == Packing::kAwq)
        append_word(out, word_of([&](int i) {
                      return zero(static_cast<int>(std::find(kAwqOrder, kAwqOrder + 8, i) - kAwqOrder));
                    }));
      else
        append_word(out, word_of(zero) - (packing == Packing::kWord ? 0x11111111u : 0u));
    }
  return out;
}

std::string packed_scales(std::int64_t n) {
  std::string out;
  const std::uint16_t half = f16(0.5f).bits;
  for (std::int64_t i = 0; i < n; ++i) out.append(reinterpret_cast<const char*>(&half), 2);
  return out;
}

std::vector<HfTensor> parts_of(const std::string& base, Packing packing) {
  const Codes codes;
  std::string q;
  if (packing == Packing::kCompressedTensors) {
    for (std::int64_t r = 0; r < kN; ++r)
      for (std::int64_t c = 0; c < kK / 8; ++c)
        append_word(q, word_of([&](int i) { return codes.q[r * kK + 8 * c + i]; }));
    std::string zeros;
    for (std::int64_t w = 0; w < kN / 8; ++w)
      for (std::int64_t g = 0; g < kGroups; ++g)
        append_word(zeros, word_of([&](int i) { return Codes::zero_of(8 * w + i, g); }));
    return {{base + "weight_packed", "I32", {kN, kK / 8}, q},
            {base + "weight_zero_point", "I32", {kN / 8, kGroups}, zeros},
            {base + "weight_scale", "F16", {kN, kGroups}, packed_scales(kN * kGroups)}};
  }
  const bool awq = packing == Packing::kAwq;
  for (std::int64_t c = 0; c < (awq ? kK : kK / 8); ++c)
    for (std::int64_t r = 0; r < (awq ? kN / 8 : kN); ++r)
      append_word(q, awq ? word_of([&](int i) {
                    return codes.q[(8 * r + (std::find(kAwqOrder, kAwqOrder + 8, i) - kAwqOrder)) * kK + c];
                  })
                         : word_of([&](int i) { return codes.q[r * kK + 8 * c + i]; }));
  return {
      {base + "qweight", "I32", awq ? std::vector<std::int64_t>{kK, kN / 8} : std::vector<std::int64_t>{kK / 8, kN}, q},
      {base + "qzeros", "I32", {kGroups, kN / 8}, packed_zeros(packing)},
      {base + "scales", "F16", {kGroups, kN}, packed_scales(kGroups * kN)}};
}

Json config_for(Packing packing) {
  if (packing == Packing::kAwq) return {{"quant_method", "awq"}, {"bits", 4}};
  if (packing == Packing::kCompressedTensors)
    return {{"quant_method", "compressed-tensors"},
            {"format", "pack-quantized"},
            {"config_groups", {{"group_0", {{"weights", {{"num_bits", 4}}}}}}}};
  return {{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", packing == Packing::kV2 ? "gptq_v2" : "gptq"}};
}

class ZeroPoints : public testing::TestWithParam<Packing> {};

TEST_P(ZeroPoints, AllSixteenAreReadAndFitTheirBits) {
  HfBuilder b = HfBuilder::tiny();
  b.config.update({{"hidden_size", kK}, {"num_key_value_heads", 1}, {"intermediate_size", kN}, {"head_dim", 32}});
  b.config["quantization_config"] = config_for(GetParam());
  b.tensors.clear();
  b.add("model.embed_tokens.weight", {40, kK});
  b.add("model.norm.weight", {kK});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".";
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) b.add(p + norm, {kK});
    b.add(p + "self_attn.q_proj.weight", {128, kK});
    b.add(p + "self_attn.k_proj.weight", {32, kK});
    b.add(p + "self_attn.v_proj.weight", {32, kK});
    b.add(p + "self_attn.o_proj.weight", {kK, 128});
    b.add(p + "mlp.down_proj.weight", {kK, kN});
    b.add(p + "mlp.up_proj.weight", {kN, kK});
    for (HfTensor& t : parts_of(p + "mlp.gate_proj.", GetParam())) b.tensors.push_back(t);
  }
  TempFolder folder;
  b.write(folder);
  const auto checkpoint = Checkpoint::open(folder.path());
  const ConstTensorView gate = checkpoint->require("blk.1.ffn_gate.weight", {kN, kK}).view;
  ASSERT_EQ(gate.dtype(), DType::kInt4);
  const Codes codes;
  std::vector<float> row(kK);
  for (std::int64_t r = 0; r < kN; ++r) {
    dequantise_row(gate, r, row.data());
    const auto* blocks = reinterpret_cast<const BlockInt4*>(gate.row(r));
    for (std::int64_t c = 0; c < kK; ++c) {
      ASSERT_EQ(blocks[c / 32].zero(), Codes::zero_of(r, c / kGroup)) << r << ", " << c;
      ASSERT_EQ(row[c], 0.5f * static_cast<float>(codes.q[r * kK + c] - Codes::zero_of(r, c / kGroup)));
    }
  }
}

QuantConfig gptq_config(const Json& more) {
  Json config = {{"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}}};
  config["quantization_config"].update(more);
  return read_quant_config(JsonRef(config, "config.json"));
}

// What a folder says comes before what its codes look like: a by-word file of skewed weights stays one.
TEST(GptqZeroPoints, TheProgramThatWroteThemDecidesFirst) {
  for (const Json& quantizer :
       {Json("gptqmodel:1.4.0"), Json{"gptqmodel:5.2.0"}, Json{"optimum:1.24.0", "gptqmodel:2.0"}}) {
    const QuantConfig c = gptq_config({{"checkpoint_format", "gptq"}, {"meta", {{"quantizer", quantizer}}}});
    EXPECT_EQ(c.zeros, GptqZeros::kOneLessByWord) << quantizer;
    EXPECT_TRUE(c.zeros_are_known) << quantizer;
  }
  EXPECT_TRUE(gptq_config({{"checkpoint_format", "gptq_v2"}}).zeros_are_known);
  EXPECT_EQ(gptq_config({{"checkpoint_format", "gptq_v2"}}).zeros, GptqZeros::kAsTheyAre);
  for (const Json& more : {Json::object(), Json{{"meta", {{"quantizer", {"auto_gptq:0.8.0"}}}}},
                           Json{{"meta", {{"quantizer", 3}}}}, Json{{"meta", "gptqmodel"}}}) {
    const QuantConfig c = gptq_config(more);
    EXPECT_EQ(c.zeros, GptqZeros::kOneLessByWord) << more;
    EXPECT_FALSE(c.zeros_are_known) << more;
  }
}

// Zero point 0 beside 7 in every word: by word is right. The codes' means: at the zero point, or far on either side of
// it (weights of mostly one sign), which says nothing.
TEST(GptqZeroPoints, GroupsOfOneSignDoNotVote) {
  for (const int mean : {7, 3, 12}) {
    std::string q, z;
    for (std::int64_t i = 0; i < kK / 8 * kN; ++i) append_word(q, word_of([&](int) { return mean; }));
    for (std::int64_t i = 0; i < kGroups * kN / 8; ++i)
      append_word(z, word_of([](int n) { return n % 2 == 0 ? 0 : 7; }) - 0x11111111u);
    const SafetensorsTensor codes{.name = "x.qweight",
                                  .rank = 2,
                                  .dims = {kK / 8, kN},
                                  .type = SafetensorsType::kI32,
                                  .data = std::as_bytes(std::span(q))};
    const SafetensorsTensor zeros{.name = "x.qzeros",
                                  .rank = 2,
                                  .dims = {kGroups, kN / 8},
                                  .type = SafetensorsType::kI32,
                                  .data = std::as_bytes(std::span(z))};
    const auto find = [&](const std::string& name) {
      return name == codes.name ? &codes : name == zeros.name ? &zeros : nullptr;
    };
    const GptqEvidence e = gptq_evidence({.name = "x", .hf_name = "x.weight", .n_out = kN, .n_in = kK}, find);
    EXPECT_EQ(e.by_nibble, 0) << mean;
    EXPECT_EQ(e.by_word > 0, mean == 7) << mean;
    EXPECT_EQ(e.verdict(), GptqZeros::kOneLessByWord) << mean;
  }
}

INSTANTIATE_TEST_SUITE_P(Packing, ZeroPoints,
                         testing::Values(Packing::kV2, Packing::kWord, Packing::kNibble, Packing::kAwq,
                                         Packing::kCompressedTensors));

// Scales and minimums of six bits in the twelve bytes of a super-block: every pair of values, each in every place.
TEST(KQuants, MinimumsOfSixBitsAreReadInAllEightPlaces) {
  BlockQ4_K block{};
  block.d = f16(1.0f);
  block.dmin = f16(1.0f);
  std::fill(std::begin(block.q), std::end(block.q), std::uint8_t{0x11});  // code 1 everywhere
  std::vector<float> row(kSuperBlock);
  for (int v = 0; v < 64; ++v) {
    int scale[8], least[8];
    for (int j = 0; j < 8; ++j) scale[j] = (v + 9 * j) % 64, least[j] = (63 - v + 5 * j) % 64;
    for (int j = 0; j < 4; ++j) {
      block.s[j] = static_cast<std::uint8_t>(scale[j] | (scale[j + 4] >> 4) << 6);
      block.s[j + 4] = static_cast<std::uint8_t>(least[j] | (least[j + 4] >> 4) << 6);
      block.s[j + 8] = static_cast<std::uint8_t>((scale[j + 4] & 15) | (least[j + 4] & 15) << 4);
    }
    dequantise_row(ConstTensorView(reinterpret_cast<const std::byte*>(&block), DType::kQ4_K, {1, kSuperBlock}), 0,
                   row.data());
    for (int i = 0; i < kSuperBlock; ++i)
      ASSERT_EQ(row[i], static_cast<float>(scale[i / 32] - least[i / 32])) << v << ", " << i;
  }
}

}  // namespace
}  // namespace mneme::test
