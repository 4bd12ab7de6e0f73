#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/formats/checkpoint.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/ops/gemm/gemm.h"
#include "tests/formats/safetensors/hf_builder.h"

namespace mneme::test {
namespace {

using testing::ElementsAre;

TEST(HuggingFace, ReadsConfigTokenizerAndTensors) {
  const HfBuilder b = HfBuilder::tiny();
  const auto checkpoint = open(b);
  const ModelConfig& c = checkpoint->config();
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.name, "tiny");
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.n_kv_heads, 2);
  EXPECT_EQ(c.max_context, 512);
  EXPECT_EQ(c.rms_eps, 1e-5);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.rope.pairs, RopePairs::kHalves);
  ASSERT_EQ(checkpoint->tensors().size(), b.tensors.size());
  for (std::size_t i = 0; i < b.tensors.size(); ++i) {
    const CheckpointTensor& t = checkpoint->tensors()[i];
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(t.view.data()), b.tensors[i].data.size()), b.tensors[i].data)
        << t.name;
  }
  EXPECT_EQ(checkpoint->tensors()[0].name, "token_embd.weight");
  EXPECT_EQ(checkpoint->require("blk.1.attn_k.weight", {64, 64}).view.dtype(), DType::kF16);
  EXPECT_EQ(checkpoint->require("blk.1.attn_v.weight", {64, 64}).view.dtype(), DType::kF32);
  EXPECT_EQ(checkpoint->require("blk.0.ffn_down.weight", {64, 96}).view.dtype(), DType::kBF16);

  const TokenizerData& t = checkpoint->tokenizer();
  EXPECT_EQ(t.kind, TokenizerKind::kByteBpe);
  EXPECT_EQ(t.tokens.size(), 40u);
  EXPECT_EQ(t.tokens[30], "<tool>");
  EXPECT_EQ(t.types[0], TokenType::kControl);
  EXPECT_EQ(t.types[30], TokenType::kUserDefined);
  EXPECT_EQ(t.types[31], TokenType::kAbsent);
  EXPECT_THAT(t.pre_patterns, ElementsAre("\\p{L}+|\\s+"));
  EXPECT_EQ(t.eos, 1);
  EXPECT_EQ(t.bos, 0);
  EXPECT_FALSE(t.add_bos);
}

TEST(HuggingFace, ShardsGiveWhatOneFileGives) {
  HfBuilder b = HfBuilder::tiny();
  const auto one = open(b);
  b.shards = 3;
  const auto three = open(b);
  ASSERT_EQ(one->tensors().size(), three->tensors().size());
  for (const CheckpointTensor& t : one->tensors()) {
    const CheckpointTensor* other = three->find(t.name);
    ASSERT_NE(other, nullptr) << t.name;
    EXPECT_EQ(t.view.to_string(), other->view.to_string());
    EXPECT_EQ(std::memcmp(t.view.data(), other->view.data(), static_cast<std::size_t>(t.view.n_elements()) * 2), 0)
        << t.name;
  }
}

TEST(HuggingFace, ArchitecturesOpen) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    const auto checkpoint = open(HfBuilder::tiny(type));
    EXPECT_EQ(architecture_name(checkpoint->config().architecture), type);
    EXPECT_EQ(checkpoint->config().qkv_bias, std::string(type) == "qwen2");
    EXPECT_EQ(checkpoint->config().qk_norm, std::string(type) == "qwen3");
  }
}

TEST(HuggingFace, Ministral3HasATemperatureAndCosinesOfLengthOne) {
  HfBuilder b = HfBuilder::tiny("ministral3");
  const ModelConfig c = open(b)->config();
  EXPECT_EQ(architecture_name(c.architecture), "mistral3");
  EXPECT_EQ(c.temperature, 0.1);
  EXPECT_EQ(c.temperature_context, 128);
  EXPECT_EQ(c.rope.attention_factor, 1.0);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.sliding_window, 0) << "none unless the file has one";
  b.config["rope_parameters"].erase("llama_4_scaling_beta");
  EXPECT_EQ(open(b)->config().temperature, 0.0);
}

TEST(HuggingFace, MixturesHaveOneMatrixAnExpert) {
  const auto checkpoint = open(HfBuilder::tiny("qwen3_moe"));
  const ExpertConfig& e = checkpoint->config().experts;
  EXPECT_EQ(std::tuple(e.n, e.n_used, e.ffn, e.normalise), std::tuple(4, 2, 32, true));
  EXPECT_EQ(checkpoint->require("blk.1.ffn_gate_inp.weight", {4, 64}).view.dtype(), DType::kBF16);
  EXPECT_NE(checkpoint->find("blk.1.ffn_down.3.weight"), nullptr);
  EXPECT_EQ(checkpoint->find("blk.1.ffn_down.weight"), nullptr);
}

TEST(HuggingFace, GptOssStacksItsExpertsWithRowsOfGateAndUpInTurns) {
  HfBuilder b = HfBuilder::tiny("gpt_oss");
  const auto checkpoint = open(b);
  const ModelConfig& c = checkpoint->config();
  EXPECT_EQ(std::tuple(c.experts.n, c.experts.n_used, c.experts.ffn, c.experts.biases, c.experts.limit),
            std::tuple(4, 2, 96, true, 7.0));
  EXPECT_EQ(std::tuple(c.sliding_window, c.window_of(0), c.window_of(1)), std::tuple(16, 16, 0));
  EXPECT_TRUE(c.qkv_bias && !c.rope.truncate);
  const ConstTensorView gate = checkpoint->require("blk.1.ffn_gate_exps.weight", {4, 96, 64}).view,
                        up = checkpoint->require("blk.1.ffn_up_exps.weight", {4, 96, 64}).view,
                        down = checkpoint->require("blk.1.ffn_down_exps.weight", {4, 64, 96}).view;
  EXPECT_EQ(gate.dtype(), DType::kMXFP4);
  const auto bytes = [&](const std::string& name) { return b.tensor("model.layers.1.mlp.experts." + name).data; };
  static constexpr float kFp4[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
  // Value of row r and column k of an expert, by the format's own words.
  const auto value = [&](const std::string& name, std::int64_t rows, std::int64_t columns, std::int64_t r,
                         std::int64_t k) {
    const std::int64_t block = r * (columns / 32) + k / 32;
    static_cast<void>(rows);
    const auto pair = static_cast<std::uint8_t>(bytes(name + "_blocks")[block * 16 + k % 32 / 2]);
    const int code = k % 2 == 0 ? pair & 15 : pair >> 4;
    const auto scale = static_cast<std::uint8_t>(bytes(name + "_scales")[block]);
    return (code > 7 ? -1.0f : 1.0f) * kFp4[code % 8] * std::exp2(static_cast<float>(scale) - 127.0f);
  };
  std::vector<float> row(96);
  for (const auto& [e, r] : {std::pair{0, 0}, {3, 95}, {2, 7}}) {
    const auto row_of = [&](const ConstTensorView& stack, std::int64_t n_out, std::int64_t n_in, std::int64_t at) {
      dequantise_row(ConstTensorView(stack.data(), stack.dtype(), {4 * n_out, n_in}), e * n_out + at, row.data());
    };
    row_of(gate, 96, 64, r);
    for (int k = 0; k < 64; ++k) ASSERT_EQ(row[k], value("gate_up_proj", 192, 64, e * 192 + 2 * r, k));
    row_of(up, 96, 64, r);
    for (int k = 0; k < 64; ++k) ASSERT_EQ(row[k], value("gate_up_proj", 192, 64, e * 192 + 2 * r + 1, k));
    row_of(down, 64, 96, r % 64);
    for (int k = 0; k < 96; ++k) ASSERT_EQ(row[k], value("down_proj", 64, 96, e * 64 + r % 64, k));
  }
  const ConstTensorView gate_bias = checkpoint->require("blk.1.ffn_gate_exps.bias", {4, 96}).view,
                        up_bias = checkpoint->require("blk.1.ffn_up_exps.bias", {4, 96}).view;
  const std::string stored = bytes("gate_up_proj_bias");
  const auto bias = [&](std::int64_t i) {
    bf16 v;
    std::memcpy(&v, stored.data() + i * 2, 2);
    return static_cast<float>(v);
  };
  EXPECT_EQ(gate_bias.row_as<float>(2)[5], bias(2 * 192 + 10));
  EXPECT_EQ(up_bias.row_as<float>(2)[5], bias(2 * 192 + 11));
  EXPECT_NE(checkpoint->find("blk.0.attn_sinks.weight"), nullptr);
  EXPECT_NE(checkpoint->find("blk.0.post_attention_norm.weight"), nullptr);
}

TEST(HuggingFace, UnquantisedExpertsOfGptOssAreStoredInputByOutput) {
  HfBuilder b = HfBuilder::tiny("gpt_oss");
  b.config.erase("quantization_config");
  for (const char* layer : {"0", "1"}) {
    const std::string p = std::string("model.layers.") + layer + ".mlp.experts.";
    for (const char* name : {"gate_up_proj", "down_proj"})
      for (const char* part : {"_blocks", "_scales"}) b.erase_tensor(p + name + part);
    b.add(p + "gate_up_proj", {4, 64, 192});
    b.add(p + "down_proj", {4, 96, 64});
  }
  const auto checkpoint = open(b);
  const ConstTensorView up = checkpoint->require("blk.0.ffn_up_exps.weight", {4, 96, 64}).view;
  const std::string& stored = b.tensor("model.layers.0.mlp.experts.gate_up_proj").data;
  for (const auto& [e, r, k] : {std::tuple{0, 0, 0}, {3, 95, 63}, {1, 20, 41}})
    EXPECT_EQ(
        std::memcmp(up.data() + ((e * 96 + r) * 64 + k) * 2, stored.data() + ((e * 64 + k) * 192 + 2 * r + 1) * 2, 2),
        0);
}

// The text part of a model that reads pictures, under either of the names that published folders have.
TEST(HuggingFace, TextPartOfAModelThatReadsPictures) {
  for (const char* text : {"language_model.model.", "model.language_model."}) {
    HfBuilder b = HfBuilder::tiny("ministral3");
    const auto alone = open(b);
    const Json config = b.config;
    b.config = {{"model_type", "mistral3"}, {"text_config", config}, {"vision_config", {{"model_type", "pixtral"}}}};
    for (HfTensor& t : b.tensors) t.name = text + t.name.substr(std::string("model.").size());
    b.add("vision_tower.patch_conv.weight", {8, 3, 2, 2});
    b.add("model.multi_modal_projector.linear_1.weight", {8, 8});
    b.shards = 2;
    const auto checkpoint = open(b);
    EXPECT_EQ(architecture_name(checkpoint->config().architecture), "mistral3");
    EXPECT_EQ(checkpoint->tensors().size(), alone->tensors().size());
    b.add("model.audio_tower.weight", {8});
    expect_error(ErrorKind::kUnsupported, {"model.audio_tower.weight", "not part of a mistral3 model"},
                 [&] { open(b); });
  }
}

TEST(HuggingFace, TensorsWithoutMeaningAreLeftOut) {
  HfBuilder b = HfBuilder::tiny();
  b.add("model.layers.0.self_attn.rotary_emb.inv_freq", {16}, "F32");
  const auto checkpoint = open(b);
  EXPECT_EQ(checkpoint->tensors().size(), b.tensors.size() - 1);
}

TEST(HfConfig, DefaultsAreThoseOfTheConfigurationClasses) {
  Json json = HfBuilder::tiny().config;
  for (const char* key : {"num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps", "tie_word_embeddings",
                          "max_position_embeddings"})
    json.erase(key);
  ModelConfig c = config_of(json);
  EXPECT_EQ(c.n_kv_heads, 4);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.rope.theta, 10000.0);
  EXPECT_EQ(c.rms_eps, 1e-6);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(c.max_context, 2048);
  EXPECT_EQ(c.sliding_window, 0);
  json["head_dim"] = nullptr;
  EXPECT_EQ(config_of(json).head_dim, 16);
  json.erase("head_dim");
  json["model_type"] = "qwen3";
  EXPECT_EQ(config_of(json).head_dim, 128);
  EXPECT_EQ(config_of(json).max_context, 32768);
}

TEST(HfConfig, SlidingWindow) {
  Json json = HfBuilder::tiny("mistral").config;
  EXPECT_EQ(config_of(json).sliding_window, 4096) << "the class's default";
  json["sliding_window"] = nullptr;
  EXPECT_EQ(config_of(json).sliding_window, 0);
  json["sliding_window"] = 64;
  EXPECT_EQ(config_of(json).sliding_window, 64);
  json["model_type"] = "qwen2";
  EXPECT_EQ(config_of(json).sliding_window, 0) << "use_sliding_window is false";
  json["use_sliding_window"] = true;
  EXPECT_EQ(config_of(json).sliding_window, 0) << "only layers from the 28th on";
  json["max_window_layers"] = 0;
  EXPECT_EQ(config_of(json).sliding_window, 64);
  json["max_window_layers"] = 1;
  EXPECT_EQ(config_of(json).sliding_window, 64);
  EXPECT_EQ(config_of(json).windowed, (std::vector<bool>{false, true}));
  json["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(config_of(json).sliding_window, 0);
}

Json of_family(const char* type) {
  Json json = HfBuilder::tiny().config;
  json["model_type"] = type;
  return json;
}

TEST(HfConfig, GraniteMultipliers) {
  Json json = of_family("granite");
  json["embedding_multiplier"] = 12.0;
  json["attention_multiplier"] = 0.0078125;
  json["residual_multiplier"] = 0.22;
  json["logits_scaling"] = 0.0;
  const ModelConfig c = config_of(json);
  EXPECT_EQ(c.embedding_scale, 12.0);
  EXPECT_EQ(c.attention_scale, 0.0078125);
  EXPECT_EQ(c.residual_scale, 0.22);
  EXPECT_EQ(c.logit_divisor, 1.0) << "0 is no divisor";
  json["model_type"] = "llama";
  EXPECT_EQ(config_of(json).embedding_scale, 1.0) << "llama's class ignores the key";
}

TEST(HfConfig, LayersWithoutRope) {
  Json json = of_family("smollm3");
  EXPECT_EQ(config_of(json).unrotated, (std::vector<bool>{false, false})) << "every fourth of two";
  json["no_rope_layers"] = {1, 0};
  EXPECT_EQ(config_of(json).unrotated, (std::vector<bool>{false, true}));
  json["no_rope_layers"] = {1, 0, 1};
  expect_error(ErrorKind::kFormat, {"layers without RoPE", "expected 2", "found 3"}, [&] { config_of(json); });
  json.erase("no_rope_layers");
  json["no_rope_layer_interval"] = 2;
  expect_error(ErrorKind::kUnsupported, {"no_rope_layer_interval 2"}, [&] { config_of(json); });
}

TEST(HfConfig, Olmo3HasRopeByKindOfLayer) {
  Json json = of_family("olmo3");
  json["layer_types"] = {"sliding_attention", "full_attention"};
  const Json plain = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  const Json yarn = {
      {"rope_type", "yarn"}, {"rope_theta", 5e5}, {"factor", 8.0}, {"original_max_position_embeddings", 64}};
  json["rope_parameters"] = {{"sliding_attention", plain}, {"full_attention", yarn}};
  const ModelConfig c = config_of(json);
  EXPECT_EQ(c.sliding_window, 4096);
  EXPECT_EQ(c.windowed, (std::vector<bool>{true, false}));
  EXPECT_EQ(c.rope.scaling, RopeScaling::kYarn);
  EXPECT_TRUE(c.plain_windows);
  json["rope_parameters"]["sliding_attention"]["rope_theta"] = 1e4;
  expect_error(ErrorKind::kUnsupported, {"sliding_attention", "rope_theta"}, [&] { config_of(json); });
  json["rope_parameters"] = {{"sliding_attention", yarn}, {"full_attention", yarn}};
  expect_error(ErrorKind::kUnsupported, {"sliding_attention", "no scaling"}, [&] { config_of(json); });
}

TEST(HfConfig, OldFoldersOfQwen25VlAreFlat) {
  Json json = of_family("qwen2_5_vl");
  json["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}};
  const ModelConfig c = config_of(json);
  EXPECT_EQ(c.architecture, Architecture::kQwen25Vl);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kNone);
  EXPECT_TRUE(c.qkv_bias);
  json["model_type"] = "mistral3";
  expect_error(ErrorKind::kFormat, {"text_config", "missing"}, [&] { config_of(json); });
}

TEST(HfConfig, HunyuansAlphaEnlargesTheBaseOnce) {
  Json json = of_family("hunyuan_v1_dense");
  json["rope_theta"] = 10000.0;
  json["rope_scaling"] = {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}};
  const ModelConfig c = config_of(json);
  const double d = static_cast<double>(c.head_dim);
  EXPECT_DOUBLE_EQ(c.rope.theta, 10000.0 * std::pow(1000.0, d / (d - 2.0)));
  EXPECT_EQ(c.rope.scaling, RopeScaling::kNone);
  EXPECT_TRUE(c.qk_norm_behind);
}

TEST(HfConfig, BiasesThatNoBuildAddsAreRefused) {
  Json json = of_family("seed_oss");
  EXPECT_TRUE(config_of(json).qkv_bias) << "the class's default";
  json["attention_bias"] = false;
  EXPECT_FALSE(config_of(json).qkv_bias);
  json["attention_out_bias"] = true;
  expect_error(ErrorKind::kUnsupported, {"attention_out_bias"}, [&] { config_of(json); });
  json = of_family("ernie4_5");
  json["use_bias"] = true;
  expect_error(ErrorKind::kUnsupported, {"use_bias"}, [&] { config_of(json); });
}

TEST(HfConfig, RopeOverAPartOfTheHead) {
  Json json = of_family("glm4");
  EXPECT_EQ(config_of(json).rope.rotary_dim, config_of(json).head_dim / 2) << "the class's default";
  json["partial_rotary_factor"] = 0.01;
  expect_error(ErrorKind::kFormat, {"partial_rotary_factor", "less than two"}, [&] { config_of(json); });
  json["partial_rotary_factor"] = -1;
  expect_error(ErrorKind::kFormat, {"partial_rotary_factor"}, [&] { config_of(json); });
  json["model_type"] = "llama";
  json["partial_rotary_factor"] = 0.5;
  expect_error(ErrorKind::kUnsupported, {"0.5", "llama"}, [&] { config_of(json); });
}

TEST(HfConfig, RopeScalings) {
  const auto rope = [](const char* key, const Json& value) {
    Json json = HfBuilder::tiny().config;
    json[key] = value;
    return config_of(json);
  };
  EXPECT_EQ(rope("rope_scaling", nullptr).rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(rope("rope_scaling", {{"rope_type", "default"}}).rope.scaling, RopeScaling::kNone);

  ModelConfig c = rope("rope_scaling", {{"type", "linear"}, {"factor", 4}});
  EXPECT_EQ(c.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(c.rope.factor, 4.0);
  EXPECT_EQ(c.max_context, 2048);

  c = rope("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.5}});
  EXPECT_EQ(c.rope.scaling, RopeScaling::kDynamic);
  EXPECT_EQ(c.rope.original_context, 512);
  EXPECT_EQ(c.max_context, 1280);

  c = rope("rope_scaling", {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 128}});
  EXPECT_EQ(c.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(c.rope.original_context, 128);
  EXPECT_EQ(c.max_context, 512);

  c = rope("rope_scaling", {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}});
  EXPECT_EQ(c.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(c.max_context, 2048);
  EXPECT_EQ(c.rope.attention_factor, 0.0);
  EXPECT_EQ(c.rope.beta_fast, 32.0);

  c = rope("rope_scaling", {{"type", "yarn"},
                            {"original_max_position_embeddings", 128},
                            {"attention_factor", 1.25},
                            {"beta_fast", 16},
                            {"beta_slow", 2}});
  EXPECT_EQ(c.rope.factor, 4.0) << "512 over 128";
  EXPECT_EQ(c.rope.attention_factor, 1.25);
  EXPECT_EQ(c.rope.beta_fast, 16.0);
  EXPECT_EQ(c.rope.beta_slow, 2.0);

  c = rope("rope_scaling", {{"type", "yarn"}, {"factor", 40.0}, {"mscale", 1.0}, {"mscale_all_dim", 0.5}});
  EXPECT_NEAR(c.rope.attention_factor, (0.1 * std::log(40.0) + 1.0) / (0.05 * std::log(40.0) + 1.0), 1e-12);

  c = rope("rope_parameters", {{"rope_type", "linear"}, {"rope_theta", 5e5}, {"factor", 2.0}});
  EXPECT_EQ(c.rope.theta, 5e5);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kLinear);
}

TokenizerData tokenizer_of(const Json& json) {
  return read_tokenizer_json(JsonRef(json, "tokenizer.json"));
}

TEST(HfTokenizer, MergesInBothForms) {
  Json json = HfBuilder::byte_level_tokenizer();
  const auto strings = tokenizer_of(json).merges;
  json["model"]["merges"] = Json::array({Json::array({"a", "b"}), Json::array({"ab", "c"})});
  EXPECT_EQ(tokenizer_of(json).merges, strings);
  EXPECT_THAT(strings, ElementsAre(std::make_pair("a", "b"), std::make_pair("ab", "c")));
}

TEST(HfTokenizer, PreTokenizers) {
  Json json = HfBuilder::byte_level_tokenizer();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  TokenizerData t = tokenizer_of(json);
  ASSERT_EQ(t.pre_patterns.size(), 1u);
  EXPECT_TRUE(t.pre_patterns[0].starts_with("'s|'t|'re")) << "GPT-2's own";
  EXPECT_TRUE(t.pre_add_prefix_space);
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Digits"}, {"individual_digits", true}},
                             {{"type", "Split"}, {"pattern", {{"String", "a.b"}}}, {"behavior", "Isolated"}},
                             {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  json["normalizer"] = {{"type", "NFC"}};
  json["model"]["ignore_merges"] = true;
  t = tokenizer_of(json);
  EXPECT_THAT(t.pre_patterns, ElementsAre("\\p{N}", "a\\.b"));
  EXPECT_TRUE(t.ignore_merges);
}

Json split_by(const char* regex) {
  Json json = HfBuilder::byte_level_tokenizer();
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}},
                             {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  return json;
}

// PCRE2's reading cut 1234 into 123 and 4; findings/tokenizers_split_pattern.sh has what the tokenizers library does.
TEST(HfTokenizer, PatternsMeanWhatTheyMeanInRuby) {
  const auto read = [](const char* regex) { return tokenizer_of(split_by(regex)).pre_patterns.at(0); };
  EXPECT_EQ(read(R"(\p{N}{1,3}+|\P{N}++)"), R"(\p{N}+|\P{N}++)");
  EXPECT_EQ(read("a{0,2}+b{,2}+c{,2}d{2,3}{"), "a*b*c{0,2}d{2,3}{");
  EXPECT_EQ(read(R"(\s+$|^a|[$^]\$)"), R"((?m)\s+$|^a|[$^]\$)");
  EXPECT_EQ(read(R"(\h+|[^\h])"), "[0-9A-Fa-f]+|[^0-9A-Fa-f]");
  EXPECT_EQ(read(R"([]{1,3}+$[:alpha:]]|(?i:'s)|(?!m))"), R"([]{1,3}+$[:alpha:]]|(?i:'s)|(?!m))");
}

TEST(HfTokenizer, PatternsThatPcre2HasNoEqualForAreNamed) {
  for (const char* regex : {"a{2,3}+", "a{2}+", R"(\H)", "[a-z&&[^b]]", "[a[b]]", "(?m:a.b)", "(?im)a"})
    EXPECT_THROW(tokenizer_of(split_by(regex)), Error) << regex;
}

TEST(HfTokenizer, HolesAreIdsWithoutAToken) {
  Json json = HfBuilder::byte_level_tokenizer();
  json["model"]["vocab"]["far"] = 35;
  const TokenizerData t = tokenizer_of(json);
  ASSERT_EQ(t.tokens.size(), 36u);
  EXPECT_EQ(t.tokens[33], "[PAD33]");
  EXPECT_EQ(t.types[33], TokenType::kAbsent);
  EXPECT_EQ(t.types[35], TokenType::kNormal);
}

TEST(HfTokenizer, SentencePiece) {
  Json json = HfBuilder::sentencepiece_tokenizer();
  const auto check = [&](bool prefix) {
    const TokenizerData t = tokenizer_of(json);
    EXPECT_EQ(t.kind, TokenizerKind::kSentencePiece);
    EXPECT_EQ(t.add_space_prefix, prefix);
    EXPECT_TRUE(t.add_bos);
    EXPECT_FALSE(t.add_eos);
    EXPECT_EQ(t.bos, 1);
    EXPECT_EQ(t.unk, 0);
    EXPECT_EQ(t.types[0], TokenType::kUnknown);
    EXPECT_EQ(t.types[2], TokenType::kControl);
    EXPECT_EQ(t.types[4], TokenType::kByte);
    EXPECT_EQ(t.types[11], TokenType::kUnused) << "no merge makes it";
    EXPECT_GT(t.scores[8], t.scores[9]) << "the earlier merge scores better";
    EXPECT_GT(t.scores[9], t.scores[10]);
    EXPECT_GT(t.scores[10], t.scores[6]);
    EXPECT_EQ(t.merges.size(), 4u) << "scores join pairs that the list has not";
    return t;
  };
  EXPECT_EQ(check(true).space_rule, SpaceRule::kPrepend);
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  EXPECT_EQ(check(true).space_rule, SpaceRule::kFirst);
  json["pre_tokenizer"]["prepend_scheme"] = "never";
  json["pre_tokenizer"]["split"] = true;
  const TokenizerData never = check(false);
  EXPECT_EQ(never.space_rule, SpaceRule::kNever);
  EXPECT_TRUE(never.split_at_marks);
}

TEST(HfTokenizer, WhatIsNotDoneAsTheLibraryDoesItIsRefusedByName) {
  const auto refused = [](const Json& json, const char* what) {
    try {
      tokenizer_of(json);
      ADD_FAILURE() << what;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
    }
  };
  Json json = HfBuilder::sentencepiece_tokenizer();
  json["added_tokens"][1]["single_word"] = true;
  refused(json, "single_word");
  json = HfBuilder::sentencepiece_tokenizer();
  json["model"]["ignore_merges"] = true;
  refused(json, "ignore_merges");
  json = HfBuilder::byte_level_tokenizer();
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", true}}, {{"type", "ByteLevel"}, {"add_prefix_space", true}}}}};
  refused(json, "add_prefix_space");
}

TEST(HfTokenizer, SideFiles) {
  HfBuilder b = HfBuilder::tiny();
  b.tokenizer_config = {
      {"bos_token", "<s>"},
      {"eos_token", {{"content", "</s>"}, {"lstrip", false}}},
      {"pad_token", nullptr},
      {"add_bos_token", true},
      {"chat_template", {{{"name", "tool_use"}, {"template", "no"}}, {{"name", "default"}, {"template", "yes"}}}}};
  b.generation_config = {{"eos_token_id", {29, 1, 30}}, {"pad_token_id", 5}};
  TokenizerData t = open(b)->tokenizer();
  EXPECT_EQ(t.bos, 0);
  EXPECT_EQ(t.eos, 1);
  EXPECT_EQ(t.pad, 5);
  EXPECT_TRUE(t.add_bos);
  EXPECT_EQ(t.chat_template, "yes");
  EXPECT_THAT(t.named_templates, ElementsAre(std::pair<std::string, std::string>("tool_use", "no")));
  EXPECT_THAT(t.eog, ElementsAre(29, 30));
  b.extra["chat_template.jinja"] = "file";
  b.generation_config = Json();
  t = open(b)->tokenizer();
  EXPECT_EQ(t.chat_template, "file");
  EXPECT_TRUE(t.named_templates.empty()) << "files replace the list";
  EXPECT_TRUE(t.eog.empty());
}

TEST(HfTokenizer, TemplatesOfTheirOwnFilesHaveTheFilesNames) {
  HfBuilder b = HfBuilder::tiny();
  TempFolder folder;
  b.write(folder);
  std::filesystem::create_directory(folder / "additional_chat_templates");
  folder.write("additional_chat_templates/tool_use.jinja", "tools");
  folder.write("additional_chat_templates/rag.jinja", "rag");
  folder.write("additional_chat_templates/README.md", "none");
  const auto named = ElementsAre(std::pair<std::string, std::string>("rag", "rag"),
                                 std::pair<std::string, std::string>("tool_use", "tools"));
  EXPECT_THAT(Checkpoint::open(folder.path())->tokenizer().named_templates, named);
  EXPECT_EQ(Checkpoint::open(folder.path())->tokenizer().chat_template, "");
  folder.write("chat_template.jinja", "default");
  EXPECT_THAT(Checkpoint::open(folder.path())->tokenizer().named_templates, named);
  EXPECT_EQ(Checkpoint::open(folder.path())->tokenizer().chat_template, "default");
}

TEST(HfTokenizer, AloneInAFile) {
  TempFolder folder;
  const auto path = folder.write("tokenizer.json", HfBuilder::byte_level_tokenizer().dump());
  EXPECT_EQ(Checkpoint::open_tokenizer(path).tokens.size(), 31u);
  EXPECT_EQ(Checkpoint::open_tokenizer(folder.path()).tokens.size(), 31u);
}

}  // namespace
}  // namespace mneme::test
