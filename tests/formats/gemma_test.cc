// Gemma's folders and GGUF files: what other models do not have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/formats/gguf/gguf_checkpoint.h"
#include "src/formats/model_plan.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/ops/gemm/gemm.h"
#include "tests/formats/gguf/gguf_builder.h"
#include "tests/formats/safetensors/hf_builder.h"

namespace mneme::test {
namespace {

// What the text_config of google/gemma-3-4b-it says: all else is the class's.
Json gemma3_4b() {
  return {{"model_type", "gemma3_text"},
          {"hidden_size", 2560},
          {"intermediate_size", 10240},
          {"num_hidden_layers", 34},
          {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
          {"sliding_window", 1024}};
}

TEST(Gemma3Config, DefaultsAreThoseOfTheConfigurationClass) {
  const Json whole = {{"model_type", "gemma3"}, {"text_config", gemma3_4b()}, {"vision_config", Json::object()}};
  const ModelConfig c = config_of(whole);
  EXPECT_EQ(c.architecture, Architecture::kGemma3);
  EXPECT_EQ(c.n_heads, 8);
  EXPECT_EQ(c.n_kv_heads, 4);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.vocab, 262208);
  EXPECT_EQ(c.max_context, 131072) << "the length after scaling";
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.attention_scale, 0.0) << "256^-1/2, which heads of 256 have anyway";
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope.factor, 8.0);
  EXPECT_EQ(c.window_theta, 1e4);
  EXPECT_EQ(c.rms_eps, 1e-6);
  EXPECT_EQ(c.norms, NormOrder::kBoth);
  EXPECT_EQ(c.logit_cap, 0.0);
  for (std::size_t l = 0; l < 34; ++l) EXPECT_EQ(c.windowed[l], l % 6 != 5) << l;
  const ModelPlan plan = model_plan_of(c);
  EXPECT_EQ(std::get<AttentionPlan>(plan.layers[4].blocks[0]).rope, 1);
  EXPECT_EQ(std::get<AttentionPlan>(plan.layers[5].blocks[0]).rope, 0);
  const std::vector<RopeConfig> ropes = ropes_of(c);
  ASSERT_EQ(ropes.size(), 2u);
  EXPECT_EQ(ropes[1].theta, 1e4);
  EXPECT_EQ(ropes[1].scaling, RopeScaling::kNone);
}

TEST(Gemma3Config, KeysOfOlderAndNewerFolders) {
  Json json = gemma3_4b();
  json["query_pre_attn_scalar"] = 168;
  json["final_logit_softcapping"] = 30.0;
  json["rope_local_base_freq"] = 2e4;
  json["sliding_window_pattern"] = 3;
  const ModelConfig old = config_of(json);
  EXPECT_DOUBLE_EQ(old.attention_scale, 1.0 / std::sqrt(168.0));
  EXPECT_EQ(old.logit_cap, 30.0);
  EXPECT_EQ(old.window_theta, 2e4);
  EXPECT_TRUE(old.windowed[1] && !old.windowed[2]);
  json["sliding_window_pattern"] = 0;
  expect_error(ErrorKind::kFormat, {"sliding_window_pattern", "1 or more"}, [&] { config_of(json); });
  json.erase("sliding_window_pattern");
  const Json full = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 5e5}};
  json["rope_parameters"] = {{"full_attention", full}, {"sliding_attention", {{"rope_type", "default"}}}};
  expect_error(ErrorKind::kUnsupported, {"rope_scaling", "rope_parameters"}, [&] { config_of(json); });
  json.erase("rope_scaling");
  json.erase("rope_local_base_freq");
  EXPECT_EQ(config_of(json).rope.theta, 5e5);
  EXPECT_EQ(config_of(json).window_theta, 1e4);
  json["rope_parameters"]["sliding_attention"]["rope_theta"] = 3e4;
  EXPECT_EQ(config_of(json).window_theta, 3e4);
  json["rope_parameters"]["sliding_attention"] = full;
  expect_error(ErrorKind::kUnsupported, {"sliding_attention", "no scaling"}, [&] { config_of(json); });
}

TEST(Gemma3Config, OtherArithmeticIsRefusedByName) {
  for (const auto& [key, value] : {std::pair{"hidden_activation", Json("gelu")},
                                   {"attn_logit_softcapping", Json(50.0)},
                                   {"use_bidirectional_attention", Json(true)}}) {
    Json json = gemma3_4b();
    json[key] = value;
    expect_error(ErrorKind::kUnsupported, {key}, [&] { config_of(json); });
  }
  Json json = gemma3_4b();
  json["query_pre_attn_scalar"] = 0;
  expect_error(ErrorKind::kFormat, {"query_pre_attn_scalar", "1 or more"}, [&] { config_of(json); });
}

// A window that no sequence outgrows is no window, but its layers keep their RoPE.
TEST(Gemma3Config, LayersWithWindowsKeepTheirRopeInShortContexts) {
  ModelConfig c = config_of(gemma3_4b());
  c.sliding_window = 100;
  EXPECT_EQ(std::get<AttentionPlan>(model_plan_of(c).layers[0].blocks[0]).rope, 1);
}

HfBuilder tiny_gemma3(const std::string& prefix = "model.") {
  HfBuilder b = HfBuilder::tiny("gemma3_text");
  b.config.erase("tie_word_embeddings");
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    b.add(layer + "pre_feedforward_layernorm.weight", {64});
    b.add(layer + "post_feedforward_layernorm.weight", {64});
    b.add(layer + "self_attn.q_norm.weight", {32});
    b.add(layer + "self_attn.k_norm.weight", {32});
  }
  for (HfTensor& t : b.tensors) t.name = prefix + t.name.substr(std::string("model.").size());
  return b;
}

TEST(Gemma3Folder, WeightsOfNormsAreRaisedByOne) {
  HfBuilder b = tiny_gemma3();
  const auto checkpoint = open(b);
  EXPECT_TRUE(checkpoint->config().tied_embeddings);
  for (const auto& [ours, theirs] : {std::pair{"output_norm.weight", "model.norm.weight"},
                                     {"blk.1.attn_q_norm.weight", "model.layers.1.self_attn.q_norm.weight"},
                                     {"blk.1.post_ffw_norm.weight", "model.layers.1.post_feedforward_layernorm.weight"},
                                     {"blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"},
                                     {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"}}) {
    const CheckpointTensor* t = checkpoint->find(ours);
    ASSERT_NE(t, nullptr) << ours;
    ASSERT_EQ(t->view.dtype(), DType::kF32);
    const std::string& stored = b.tensor(theirs).data;
    for (std::int64_t i = 0; i < t->view.dim(0); ++i) {
      bf16 v;
      std::memcpy(&v.bits, stored.data() + 2 * i, 2);
      EXPECT_EQ(t->view.row_as<float>(0)[i], 1.0f + static_cast<float>(v)) << ours << " " << i;
    }
  }
  EXPECT_EQ(checkpoint->find("blk.0.attn_q.weight")->view.dtype(), DType::kBF16) << "matrices are views";
}

TEST(Gemma3Folder, EmbeddingsAreScaledInTheTypeOfTheWeights) {
  HfBuilder b = tiny_gemma3();
  b.config["hidden_size"] = 64;
  EXPECT_EQ(open(b)->config().embedding_scale, 8.0);
  // Gemma 3 270M: sqrt(640) is 25.298, in bf16 25.25.
  for (const auto& [type, scale] :
       {std::pair{"BF16", 25.25}, {"F16", 25.296875}, {"F32", static_cast<double>(std::sqrt(640.0f))}}) {
    HfBuilder wide = tiny_gemma3();
    wide.config.update({{"hidden_size", 640}, {"num_hidden_layers", 1}});
    const std::vector<HfTensor> before = std::move(wide.tensors);
    wide.tensors.clear();
    for (const HfTensor& t : before) {
      if (t.name.find("layers.1.") != std::string::npos) continue;
      std::vector<std::int64_t> shape = t.shape;
      for (std::int64_t& n : shape)
        if (n == 64 && &n == &shape.back()) n = 640;
      if (t.name.ends_with("o_proj.weight") || t.name.ends_with("down_proj.weight")) shape = {640, t.shape[1]};
      wide.add(t.name, shape, type);
    }
    EXPECT_DOUBLE_EQ(open(wide)->config().embedding_scale, scale) << type;
  }
}

TEST(Gemma3Folder, TextPartOfAModelThatReadsPictures) {
  const auto alone = open(tiny_gemma3());
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    HfBuilder b = tiny_gemma3(prefix);
    b.config = {{"model_type", "gemma3"}, {"text_config", b.config}, {"vision_config", Json::object()}};
    b.add("model.vision_tower.vision_model.embeddings.patch_embedding.weight", {8, 3, 2, 2});
    b.add("multi_modal_projector.mm_input_projection_weight", {8, 8});
    const auto checkpoint = open(b);
    EXPECT_EQ(checkpoint->config().architecture, Architecture::kGemma3);
    EXPECT_EQ(checkpoint->tensors().size(), alone->tensors().size());
  }
}

// Sizes and keys of google/gemma-3-270m as llama.cpp's converter writes them: without a pattern of windows, the base of
// windows' RoPE, or scales.
GgufBuilder tiny_gemma3_gguf() {
  GgufBuilder b = GgufBuilder::tiny();
  b.rename_architecture("gemma3");
  b.set("gemma3.attention.sliding_window", 16u);
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    for (const char* name : {"post_attention_norm.weight", "post_ffw_norm.weight"}) b.add(layer + name, {64}, 0);
    for (const char* name : {"attn_q_norm.weight", "attn_k_norm.weight"}) b.add(layer + name, {32}, 0);
  }
  return b;
}

std::unique_ptr<Checkpoint> open(const GgufBuilder& b, std::string& bytes) {
  bytes = b.build();
  return open_gguf(std::as_bytes(std::span(bytes)), "g.gguf");
}

TEST(Gemma3Gguf, FilesWithoutAPatternHaveEverySixthLayerFull) {
  std::string bytes;
  GgufBuilder b = tiny_gemma3_gguf();
  const ModelConfig c = open(b, bytes)->config();
  EXPECT_EQ(c.windowed, (std::vector<bool>{true, true}));
  EXPECT_EQ(c.window_theta, 1e4);
  EXPECT_DOUBLE_EQ(c.embedding_scale, 8.0);
  EXPECT_EQ(c.gate, Gate::kGelu);
  b.set("gemma3.attention.sliding_window_pattern", 2u);
  b.set("gemma3.rope.freq_base_swa", 2e4f);
  b.set("gemma3.final_logit_softcapping", 30.0f);
  const ModelConfig said = open(b, bytes)->config();
  EXPECT_EQ(said.windowed, (std::vector<bool>{true, false}));
  EXPECT_EQ(said.window_theta, 2e4);
  EXPECT_EQ(said.logit_cap, 30.0);
  b.set("gemma3.attention.sliding_window_pattern", 0u);
  expect_error(ErrorKind::kFormat, {"sliding_window_pattern", "1 or more", "found 0"}, [&] { open(b, bytes); });
}

TEST(Gemma3Gguf, ModelsOf62LayersScaleAttentionByTheWidthOfAHead) {
  ModelConfig c = config_of(gemma3_4b());
  c.n_layers = 62, c.hidden = 5376, c.n_heads = 32, c.head_dim = 128;
  std::string bytes;
  GgufBuilder b = tiny_gemma3_gguf();
  b.set("gemma3.block_count", 62u);
  for (int layer = 2; layer < 62; ++layer)
    for (const auto& t : tiny_gemma3_gguf().tensors)
      if (t.name.starts_with("blk.0.")) b.add(fmt::format("blk.{}.{}", layer, t.name.substr(6)), t.dims, t.type);
  EXPECT_DOUBLE_EQ(open(b, bytes)->config().attention_scale, 1.0 / 4.0) << "(64 / 4)^-1/2, not 32^-1/2";
}

TEST(Gemma3Tokenizer, ASplitAtSpacesThatTheNormaliserLeavesNoneOfIsNoRule) {
  Json json = HfBuilder::sentencepiece_tokenizer();
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  const TokenizerData t = read_tokenizer_json(JsonRef(json, "tokenizer.json"));
  EXPECT_EQ(t.kind, TokenizerKind::kSentencePiece);
  EXPECT_EQ(t.space_rule, SpaceRule::kReplace);
  EXPECT_FALSE(t.add_space_prefix);
  json["pre_tokenizer"]["behavior"] = "Isolated";
  expect_error(ErrorKind::kUnsupported, {"Split"}, [&] { read_tokenizer_json(JsonRef(json, "tokenizer.json")); });
}

}  // namespace
}  // namespace mneme::test
