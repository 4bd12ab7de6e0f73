// Folders that say one thing twice: what transformers 5.24 takes, or an error that names both.
#include <gtest/gtest.h>

#include <cmath>

#include "src/formats/checkpoint.h"
#include "src/formats/safetensors/hf_model.h"
#include "tests/formats/safetensors/hf_builder.h"

namespace mneme::test {
namespace {

std::unique_ptr<Checkpoint> opened(const HfBuilder& b) {
  TempFolder folder;  // mappings outlive the removed files
  b.write(folder);
  return Checkpoint::open(folder.path());
}

ModelConfig read_config(const Json& json) {
  return read_hf_config(JsonRef(json, "config.json"));
}

TEST(TiedHead, OfOtherValuesIsTheFiles) {
  HfBuilder b = HfBuilder::tiny();
  b.add("lm_head.weight", {40, 64});
  const auto checkpoint = opened(b);
  EXPECT_FALSE(checkpoint->config().tied_embeddings) << "config.json says true";
  const CheckpointTensor& head = checkpoint->require("output.weight", {40, 64});
  EXPECT_EQ(std::memcmp(head.view.data(), b.tensor("lm_head.weight").data.data(), 40 * 64 * 2), 0);
}

TEST(TiedHead, ThatRepeatsTheEmbeddingIsReadOnce) {
  HfBuilder b = HfBuilder::tiny();
  HfTensor head = b.tensor("model.embed_tokens.weight");
  head.name = "lm_head.weight";
  b.tensors.push_back(head);
  const auto tied = opened(b);
  EXPECT_TRUE(tied->config().tied_embeddings);
  EXPECT_EQ(tied->find("output.weight"), nullptr);
  EXPECT_EQ(tied->tensors().size(), b.tensors.size() - 1);
  b.tensors.back().data.back() ^= 1;  // one bit
  EXPECT_FALSE(opened(b)->config().tied_embeddings);
  b.config["tie_word_embeddings"] = false;
  EXPECT_NE(opened(b)->find("output.weight"), nullptr);
}

TEST(TiedHead, OfAnotherTypeIsTheFiles) {
  HfBuilder b = HfBuilder::tiny();
  b.add("lm_head.weight", {40, 64}, "F32");
  EXPECT_EQ(opened(b)->require("output.weight", {40, 64}).view.dtype(), DType::kF32);
}

HfTensor zeros_of(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape,
                  std::size_t bytes) {
  return {name, dtype, std::move(shape), std::string(bytes, '\0')};
}

TEST(TiedHead, ThatIsQuantisedIsTheFiles) {
  HfBuilder packed = HfBuilder::tiny();
  packed.config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                          {"format", "pack-quantized"},
                                          {"config_groups", {{"group_0", {{"weights", {{"num_bits", 4}}}}}}}};
  packed.tensors.push_back(zeros_of("lm_head.weight_packed", "I32", {40, 8}, 40 * 8 * 4));
  packed.tensors.push_back(zeros_of("lm_head.weight_scale", "BF16", {40, 2}, 40 * 2 * 2));
  EXPECT_EQ(opened(packed)->require("output.weight", {40, 64}).view.dtype(), DType::kQ4_0);

  HfBuilder gptq = HfBuilder::tiny();
  gptq.config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
  gptq.tensors.push_back(zeros_of("lm_head.qweight", "I32", {8, 40}, 8 * 40 * 4));
  gptq.tensors.push_back(zeros_of("lm_head.qzeros", "I32", {2, 5}, 2 * 5 * 4));
  gptq.tensors.push_back(zeros_of("lm_head.scales", "F16", {2, 40}, 2 * 40 * 2));
  EXPECT_EQ(opened(gptq)->require("output.weight", {40, 64}).view.dtype(), DType::kInt4);

  HfBuilder fp8 = HfBuilder::tiny();
  fp8.config["quantization_config"] = {{"quant_method", "fp8"}};
  fp8.tensors.push_back(zeros_of("lm_head.weight", "F8_E4M3", {40, 64}, 40 * 64));
  fp8.tensors.push_back(zeros_of("lm_head.weight_scale", "F32", {1}, 4));
  EXPECT_EQ(opened(fp8)->require("output.weight", {40, 64}).view.dtype(), DType::kFp8);
}

TEST(TiedHead, WithABiasIsRefused) {
  HfBuilder b = HfBuilder::tiny();
  b.add("lm_head.bias", {40});
  expect_error(ErrorKind::kUnsupported, {"lm_head.bias", "not part"}, [&] { opened(b); });
}

Json changed(const Json& changes) {
  Json json = HfBuilder::tiny().config;
  json.erase("rope_theta");
  json.update(changes);
  return json;
}

const Json kYarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};

TEST(TwoRopeSections, ScalingReplacesParameters) {
  const Json parameters = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  ModelConfig c = read_config(changed({{"rope_parameters", parameters}, {"rope_scaling", kYarn}}));
  EXPECT_EQ(c.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(std::tuple(c.rope.factor, c.rope.original_context, c.rope.theta), std::tuple(4.0, 128, 10000.0));
  for (const Json& nothing : {Json(nullptr), Json(Json::object())}) {
    c = read_config(changed({{"rope_parameters", kYarn}, {"rope_scaling", nothing}}));
    EXPECT_EQ(c.rope.scaling, RopeScaling::kYarn) << nothing;
  }
}

TEST(TwoRopeSections, ABaseThatWouldBeLostIsNamed) {
  const Json parameters = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  Json json = changed({{"rope_parameters", parameters}, {"rope_scaling", kYarn}});
  expect_error(ErrorKind::kFormat, {"rope_parameters.rope_theta is 500000", "rope_scaling", "10000"},
               [&] { read_config(json); });
  json["rope_theta"] = 5e5;
  EXPECT_EQ(read_config(json).rope.theta, 5e5) << "the top level's is the same";
  json.erase("rope_theta");
  json["rope_scaling"]["rope_theta"] = 5e5;
  EXPECT_EQ(read_config(json).rope.theta, 5e5);
  json["rope_parameters"]["partial_rotary_factor"] = 0.5;
  expect_error(ErrorKind::kFormat, {"rope_parameters.partial_rotary_factor is 0.5", "rope_scaling"},
               [&] { read_config(json); });
}

TEST(TwoRopeSections, TheSectionsNumbersComeBeforeTheTopLevels) {
  Json json = changed({{"rope_theta", 2e4}, {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 3e4}}}});
  EXPECT_EQ(read_config(json).rope.theta, 3e4);
  json["rope_parameters"].erase("rope_theta");
  EXPECT_EQ(read_config(json).rope.theta, 2e4);
  json["partial_rotary_factor"] = 0.5;
  expect_error(ErrorKind::kUnsupported, {"part of the head (0.5)"}, [&] { read_config(json); });
  json["rope_parameters"]["partial_rotary_factor"] = 1.0;
  EXPECT_EQ(read_config(json).rope.theta, 2e4);
}

TEST(TwoRopeSections, RopeTypeComesBeforeType) {
  Json yarn = kYarn;
  yarn["type"] = "linear";
  EXPECT_EQ(read_config(changed({{"rope_scaling", yarn}})).rope.scaling, RopeScaling::kYarn);
}

TEST(OriginalLength, OfTheTopLevelWinsForYarnAndLlama3) {
  Json json = changed(
      {{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}}}, {"original_max_position_embeddings", 64}});
  EXPECT_EQ(read_config(json).rope.original_context, 64);
  EXPECT_EQ(read_config(json).max_context, 512) << "512 is more than 4 times 64";
  json["rope_parameters"] = kYarn;
  EXPECT_EQ(read_config(json).rope.original_context, 64) << "the section has 128";
  json["rope_parameters"] = {{"rope_type", "llama3"},
                             {"factor", 8.0},
                             {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0},
                             {"original_max_position_embeddings", 128}};
  EXPECT_EQ(read_config(json).rope.original_context, 64);
}

TEST(OriginalLength, OfATemperatureIsRopes) {
  Json json = HfBuilder::tiny("ministral3").config;
  json["original_max_position_embeddings"] = 64;
  EXPECT_EQ(read_config(json).temperature_context, 64);
  EXPECT_EQ(read_config(json).rope.original_context, 64);
  json["rope_scaling"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(read_config(json).temperature, 0.0) << "rope_scaling replaces the section that has the temperature";
}

TEST(TwoCountsOfExperts, ThatDifferAreNamed) {
  for (const auto& [type, key, other] : {std::tuple{"qwen3_moe", "num_experts", "num_local_experts"},
                                         {"qwen3_moe", "num_experts_per_tok", "experts_per_token"},
                                         {"gpt_oss", "num_local_experts", "num_experts"},
                                         {"gpt_oss", "num_experts_per_tok", "experts_per_token"}}) {
    Json json = HfBuilder::tiny(type).config;
    json[other] = json[key];
    EXPECT_EQ(read_config(json).experts.n, 4);
    json[other] = 3;
    expect_error(ErrorKind::kFormat, {key, other, "is 3"}, [&] { read_config(json); });
  }
}

TEST(Yarn, OfAFactorThatExtendsNothingScalesNothing) {
  Json yarn = kYarn;
  yarn["factor"] = 0.5;
  EXPECT_EQ(read_config(changed({{"rope_scaling", yarn}})).rope.attention_factor, 1.0);
}

TEST(Safetensors, ATensorMayBeginAnywhere) {
  HfBuilder b = HfBuilder::tiny();
  const auto plain = opened(b);
  // An odd number of bytes before all others: each of them lies at an odd offset.
  b.config["quantization_config"] = {{"quant_method", "fp8"}};
  b.tensors.insert(b.tensors.begin(), {"a.input_scale", "U8", {1}, std::string(1, '\0')});
  const auto odd = opened(b);
  ASSERT_EQ(odd->tensors().size(), plain->tensors().size());
  for (const CheckpointTensor& t : odd->tensors()) {
    const ConstTensorView& other = plain->find(t.name)->view;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.view.data()) % 4, 0u) << t.name;
    EXPECT_EQ(std::memcmp(t.view.data(), other.data(), static_cast<std::size_t>(other.n_elements()) * 2), 0) << t.name;
  }
}

}  // namespace
}  // namespace mneme::test
