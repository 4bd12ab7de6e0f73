// Models with linear attention in both formats: what their files say, leave unsaid and get wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "src/formats/checkpoint.h"
#include "src/formats/delta_rows.h"
#include "src/formats/family.h"
#include "src/formats/gguf/gguf_checkpoint.h"
#include "src/formats/open/convert.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/formats/weight_names.h"
#include "tests/formats/gguf/gguf_builder.h"
#include "tests/formats/safetensors/hf_builder.h"

namespace mneme::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// ---- orders of rows

constexpr auto kRows = [] { return DeltaConfig{.n_k_heads = 2, .n_v_heads = 4, .d_k = 1, .d_v = 1, .taps = 2}; };

// qwen3_next, by key head: q, k, two values, two of z; two of beta, two of alpha.
TEST(DeltaRows, OfFusedTensorsByHand) {
  const DeltaRows rows = rows_by_key_head(kRows());
  EXPECT_THAT(rows.qkv, ElementsAre(0, 6, 1, 7, 2, 3, 8, 9));
  EXPECT_THAT(rows.z, ElementsAre(4, 5, 10, 11));
  EXPECT_THAT(rows.beta, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(rows.alpha, ElementsAre(2, 3, 6, 7));
}

TEST(DeltaRows, TiledOrderByHand) {
  EXPECT_THAT(tiled_order(kRows()), ElementsAre(0, 2, 1, 3));
  DeltaConfig six = kRows();
  six.n_v_heads = 6;
  EXPECT_THAT(tiled_order(six), ElementsAre(0, 3, 1, 4, 2, 5));
}

// ---- config.json

Json hybrid_json(const char* type = "qwen3_5_text") {
  return {{"model_type", type},       {"num_hidden_layers", 8},     {"hidden_size", 64},
          {"intermediate_size", 96},  {"num_attention_heads", 4},   {"num_key_value_heads", 2},
          {"head_dim", 32},           {"vocab_size", 40},           {"num_experts", 4},
          {"num_experts_per_tok", 2}, {"moe_intermediate_size", 32}};
}

TEST(DeltaConfig, HasTheClasssDefaults) {
  const ModelConfig c = config_of(hybrid_json());
  EXPECT_EQ(c.architecture, Architecture::kQwen35);
  EXPECT_EQ(c.delta.n_k_heads, 16);
  EXPECT_EQ(c.delta.n_v_heads, 32);
  EXPECT_EQ(c.delta.d_k, 128);
  EXPECT_EQ(c.delta.d_v, 128);
  EXPECT_EQ(c.delta.taps, 4);
  EXPECT_FALSE(c.delta.tiled);
  EXPECT_THAT(c.delta.layers, ElementsAre(true, true, true, false, true, true, true, false));
  EXPECT_EQ(c.rope.rotary_dim, 8) << "a quarter of the head";
  EXPECT_TRUE(c.output_gate);
  EXPECT_TRUE(c.qk_norm);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(c.n_kv_layers(), 2);
  EXPECT_EQ(c.experts.n, 0);
}

TEST(DeltaConfig, OfMixturesHasAnExpertThatAllRowsHave) {
  Json json = hybrid_json("qwen3_5_moe_text");
  json.erase("intermediate_size");
  ModelConfig c = config_of(json);
  EXPECT_EQ(c.experts.shared, 512);
  EXPECT_TRUE(c.experts.normalise);
  json["norm_topk_prob"] = false;
  EXPECT_TRUE(config_of(json).experts.normalise) << "qwen3_5_moe has no such key";
  json["model_type"] = "qwen3_next";
  json["shared_expert_intermediate_size"] = 24;
  c = config_of(json);
  EXPECT_FALSE(c.experts.normalise);
  EXPECT_EQ(c.experts.shared, 24);
  json.erase("norm_topk_prob");
  EXPECT_TRUE(config_of(json).experts.normalise);
}

TEST(DeltaConfig, KindsOfLayersByListOrInterval) {
  Json json = hybrid_json();
  json["full_attention_interval"] = 3;
  EXPECT_THAT(config_of(json).delta.layers, ElementsAre(true, true, false, true, true, false, true, true));
  json["layer_types"] = std::vector<std::string>(8, "full_attention");
  EXPECT_EQ(config_of(json).n_kv_layers(), 8);
  json["layer_types"][1] = "linear_attention";
  EXPECT_EQ(config_of(json).n_kv_layers(), 7);
}

TEST(DeltaConfig, TheTextsTieComesBeforeTheOuterOne) {
  Json outer = {{"model_type", "qwen3_5"}, {"text_config", hybrid_json()}};
  EXPECT_FALSE(config_of(outer).tied_embeddings);
  outer["tie_word_embeddings"] = true;
  EXPECT_TRUE(config_of(outer).tied_embeddings);
  outer["text_config"]["tie_word_embeddings"] = false;
  EXPECT_FALSE(config_of(outer).tied_embeddings);
}

TEST(DeltaConfig, HostileSizesAreRefusedByName) {
  struct Bad {
    const char* key;
    Json value;
    ErrorKind kind;
    const char* words;
  };
  const std::vector<Bad> all = {
      {"linear_num_key_heads", 0, ErrorKind::kFormat, "key heads of linear attention: expected 1 to 1024, found 0"},
      {"linear_num_key_heads", 3, ErrorKind::kFormat, "32 value heads of linear attention are not a multiple of 3"},
      {"linear_num_value_heads", -16, ErrorKind::kFormat, "value heads of linear attention: expected 1"},
      {"linear_num_value_heads", std::int64_t{1} << 62, ErrorKind::kFormat, "value heads of linear attention"},
      {"linear_key_head_dim", 0, ErrorKind::kFormat, "key size of linear attention: expected 1 to 1024, found 0"},
      {"linear_value_head_dim", 1 << 20, ErrorKind::kFormat, "value size of linear attention"},
      {"linear_conv_kernel_dim", 1, ErrorKind::kFormat, "convolution: expected 2 to 16, found 1"},
      {"full_attention_interval", 0, ErrorKind::kFormat, "full_attention_interval"},
      {"full_attention_interval", -4, ErrorKind::kFormat, "full_attention_interval"},
      {"full_attention_interval", 100, ErrorKind::kUnsupported, "all 8 layers have linear attention"},
      {"layer_types",
       {"linear_attention", "full_attention"},
       ErrorKind::kFormat,
       "kinds of layers: expected 8, found 2"},
      {"layer_types", {"sliding_attention"}, ErrorKind::kUnsupported, "layer_types[0] 'sliding_attention'"},
      {"attn_output_gate", false, ErrorKind::kUnsupported, "attn_output_gate"},
      {"shared_expert_intermediate_size", -1, ErrorKind::kFormat, "shared expert: expected 0 to"},
      {"decoder_sparse_step", 2, ErrorKind::kUnsupported, "decoder_sparse_step"},
      {"mlp_only_layers", {1}, ErrorKind::kUnsupported, "mlp_only_layers"},
  };
  for (const Bad& bad : all) {
    SCOPED_TRACE(bad.key);
    Json json = hybrid_json("qwen3_5_moe_text");
    json[bad.key] = bad.value;
    expect_error(bad.kind, {bad.words}, [&] { config_of(json); });
  }
}

// ---- files

ModelConfig small(Architecture a) {
  ModelConfig c;
  c.architecture = a;
  c.n_layers = 2;
  c.hidden = 64;
  c.ffn = 32;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.head_dim = 32;
  c.vocab = 40;
  c.max_context = 512;
  c.tied_embeddings = true;
  set_family_fields(c);
  c.delta = {.n_k_heads = 2, .n_v_heads = 4, .d_k = 16, .d_v = 8, .taps = 4, .tiled = true, .layers = {true, false}};
  if (family_of(a).experts != ExpertNames::kNone) c.experts = {.n = 4, .n_used = 2, .ffn = 32, .shared = 24};
  return c;
}

GgufBuilder hybrid_gguf(Architecture architecture = Architecture::kQwen35) {
  const ModelConfig c = small(architecture);
  const std::string a = std::string(family_of(architecture).gguf);
  GgufBuilder b = GgufBuilder::tiny();
  b.rename_architecture(a.c_str());
  b.tensors.clear();
  const auto size = [&](const char* key, std::int64_t v) { b.set(a + "." + key, static_cast<std::uint32_t>(v)); };
  size("feed_forward_length", c.ffn);
  size("full_attention_interval", 2);
  size("ssm.group_count", 2);
  size("ssm.time_step_rank", 4);
  size("ssm.state_size", 16);
  size("ssm.inner_size", 32);
  size("ssm.conv_kernel", 4);
  size("rope.dimension_count", 8);
  if (c.experts.n > 0) {
    size("expert_count", 4);
    size("expert_used_count", 2);
    size("expert_feed_forward_length", 32);
    size("expert_shared_feed_forward_length", 24);
  }
  for_each_weight(c, [&](const WeightSpec& w) {
    std::vector<std::uint64_t> dims;
    for (const std::int64_t d : {w.n_in, w.n_out, w.n_experts})
      if (d > 0) dims.push_back(static_cast<std::uint64_t>(d));
    b.add(w.name, dims, 0);
  });
  return b;
}

std::unique_ptr<Checkpoint> open(const GgufBuilder& b) {
  static std::deque<std::string> kept;  // what checkpoints are views of
  const std::string& bytes = kept.emplace_back(b.build());
  return open_gguf(std::as_bytes(std::span(bytes)), "made.gguf");
}

TEST(DeltaGguf, IsReadInEveryArchitecture) {
  for (const Architecture a : {Architecture::kQwen35, Architecture::kQwen35Moe, Architecture::kQwen3Next}) {
    const ModelConfig c = open(hybrid_gguf(a))->config();
    EXPECT_EQ(c.architecture, a);
    EXPECT_EQ(c.delta.d_v, 8);
    EXPECT_EQ(c.delta.tiled, a != Architecture::kQwen3Next);
    EXPECT_THAT(c.delta.layers, ElementsAre(true, false));
    EXPECT_EQ(c.experts.shared, c.experts.n > 0 ? 24 : 0);
    EXPECT_EQ(c.rope.rotary_dim, 8);
  }
}

TEST(DeltaGguf, BlocksThatDraftAreCountedAndLeftOut) {
  GgufBuilder b = hybrid_gguf();
  b.set("qwen35.block_count", 3u);
  b.set("qwen35.nextn_predict_layers", 1u);
  b.add("blk.2.nextn.eh_proj.weight", {128, 64}, 0);
  b.add("blk.2.attn_q.weight", {64, 256}, 0);
  b.set_array<std::uint8_t>("qwen35.attention.recurrent_layers", 7, {1, 0, 0});
  const auto checkpoint = open(b);
  EXPECT_EQ(checkpoint->config().n_layers, 2);
  EXPECT_EQ(checkpoint->find("blk.2.attn_q.weight"), nullptr);
  EXPECT_THAT(checkpoint->metadata().back().value, HasSubstr("2 tensors of blocks that draft tokens (MTP)"));

  b.set("qwen35.nextn_predict_layers", 4u);
  expect_error(ErrorKind::kFormat, {"nextn_predict_layers", "expected 0 to 3"}, [&] { open(b); });
  b.set("qwen35.nextn_predict_layers", 1u);
  b.erase_tensor("blk.0.attn_norm.weight");
  expect_error(ErrorKind::kUnsupported, {"only the blocks that draft tokens (MTP)"}, [&] { open(b); });
}

TEST(DeltaGguf, HostileSizesAreRefusedByName) {
  struct Bad {
    const char* key;
    std::uint32_t value;
    const char* words;
  };
  for (const Bad& bad : std::vector<Bad>{
           {"ssm.group_count", 0, "key heads of linear attention"},
           {"ssm.group_count", 3, "are not a multiple of 3"},
           {"ssm.time_step_rank", 0, "'qwen35.ssm.inner_size' 32 is not a multiple of 'qwen35.ssm.time_step_rank' 0"},
           {"ssm.time_step_rank", 5, "is not a multiple of"},
           {"ssm.inner_size", 0, "value size of linear attention: expected 1 to 1024, found 0"},
           {"ssm.state_size", 1u << 31, "key size of linear attention"},
           {"ssm.conv_kernel", 0, "convolution: expected 2 to 16, found 0"},
           {"full_attention_interval", 0, "full_attention_interval': expected 1 or more"},
           {"rope.dimension_count", 1, "rope.dimension_count"}}) {
    SCOPED_TRACE(bad.key);
    GgufBuilder b = hybrid_gguf();
    b.set(std::string("qwen35.") + bad.key, bad.value);
    expect_error(ErrorKind::kFormat, {bad.words}, [&] { open(b); });
  }
  GgufBuilder b = hybrid_gguf();
  b.erase("qwen35.ssm.state_size");
  expect_error(ErrorKind::kFormat, {"'qwen35.ssm.state_size' is missing"}, [&] { open(b); });
  b = hybrid_gguf();
  b.set_array<std::uint32_t>("qwen35.attention.recurrent_layers", 4, {1});
  expect_error(ErrorKind::kFormat, {"kinds of layers: expected 2, found 1"}, [&] { open(b); });
  b = hybrid_gguf();
  b.erase_tensor("blk.0.ssm_a");
  expect_error(ErrorKind::kFormat, {"'blk.0.ssm_a' is missing"}, [&] { open(b); });
  b = hybrid_gguf();
  b.erase_tensor("blk.0.ssm_conv1d.weight");
  b.add("blk.0.ssm_conv1d.weight", {3, 96}, 0);
  expect_error(ErrorKind::kFormat, {"'blk.0.ssm_conv1d.weight': expected [96, 4]"}, [&] { open(b); });
}

// llama.cpp's converters may fuse gate and up of all experts, and q, k and v of attention.
TEST(DeltaGguf, FusedTensorsAreTheirParts) {
  GgufBuilder b = hybrid_gguf(Architecture::kQwen35Moe);
  const std::string gate = b.tensor("blk.0.ffn_gate_exps.weight").data, up = b.tensor("blk.0.ffn_up_exps.weight").data;
  b.erase_tensor("blk.0.ffn_gate_exps.weight");
  b.erase_tensor("blk.0.ffn_up_exps.weight");
  b.add("blk.0.ffn_gate_up_exps.weight", {64, 64, 4}, 0);
  std::string& fused = b.tensor("blk.0.ffn_gate_up_exps.weight").data;
  const std::size_t matrix = std::size_t{32} * 64 * sizeof(float);
  for (std::size_t e = 0; e < 4; ++e) {
    fused.replace(2 * e * matrix, matrix, gate, e * matrix, matrix);
    fused.replace((2 * e + 1) * matrix, matrix, up, e * matrix, matrix);
  }
  const auto q = b.tensor("blk.1.attn_q.weight").data, k = b.tensor("blk.1.attn_k.weight").data,
             v = b.tensor("blk.1.attn_v.weight").data;
  for (const char* name : {"blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight"}) b.erase_tensor(name);
  b.add("blk.1.attn_qkv.weight", {64, 256 + 64 + 64}, 0);
  b.tensor("blk.1.attn_qkv.weight").data = q + k + v;
  const auto checkpoint = open(b);
  const auto bytes_of = [&](const std::string& name, std::initializer_list<std::int64_t> shape) {
    const ConstTensorView& view = checkpoint->require(name, shape).view;
    return std::string(reinterpret_cast<const char*>(view.data()), static_cast<std::size_t>(view.n_elements()) * 4);
  };
  EXPECT_EQ(bytes_of("blk.0.ffn_gate.3.weight", {32, 64}), gate.substr(3 * matrix));
  EXPECT_EQ(bytes_of("blk.0.ffn_up.2.weight", {32, 64}), up.substr(2 * matrix, matrix));
  EXPECT_EQ(bytes_of("blk.1.attn_q.weight", {256, 64}), q);
  EXPECT_EQ(bytes_of("blk.1.attn_v.weight", {64, 64}), v);
  EXPECT_EQ(checkpoint->require("blk.0.attn_qkv.weight", {96, 64}).view.dtype(), DType::kF32)
      << "of linear attention it is one matrix";
}

// ---- folders

HfBuilder hybrid_folder(const char* type, Architecture a) {
  const ModelConfig c = small(a);
  HfBuilder b = HfBuilder::tiny();
  b.config.update({{"model_type", type},
                   {"num_experts", 4},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 32},
                   {"shared_expert_intermediate_size", 24},
                   {"linear_num_key_heads", 2},
                   {"linear_num_value_heads", 4},
                   {"linear_key_head_dim", 16},
                   {"linear_value_head_dim", 8},
                   {"intermediate_size", 32},
                   {"full_attention_interval", 2}});
  b.tensors.clear();
  for_each_weight(c, [&](const WeightSpec& w) {
    const bool vector = w.n_in == 0;
    if (w.fused == FusedSplit::kZ || w.fused == FusedSplit::kSecondOutputs) return;
    std::vector<std::int64_t> shape = vector ? std::vector{w.n_out} : std::vector{w.n_out, w.n_in};
    if (w.fused == FusedSplit::kQkv) shape[0] += c.delta.value_width();
    if (w.fused == FusedSplit::kFirstOutputs) shape[0] *= 2;
    if (w.n_experts > 0) shape.insert(shape.begin(), w.n_experts);
    if (w.change == WeightChange::kSqueeze) shape.insert(vector ? shape.begin() : shape.begin() + 1, 1);
    b.add(w.hf_name, shape, "F32");
  });
  return b;
}

float value_of(const HfBuilder& b, const std::string& name, std::int64_t i) {
  for (const HfTensor& t : b.tensors)
    if (t.name == name) return reinterpret_cast<const float*>(t.data.data())[i];
  ADD_FAILURE() << name;
  return 0.0f;
}

TEST(DeltaFolder, HasGgufsValues) {
  const HfBuilder b = hybrid_folder("qwen3_5_moe_text", Architecture::kQwen35Moe);
  const auto checkpoint = open(b);
  const auto found = [&](const std::string& name, std::initializer_list<std::int64_t> shape, std::int64_t i) {
    return reinterpret_cast<const float*>(checkpoint->require(name, shape).view.data())[i];
  };
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(found("blk.0.attn_norm.weight", {64}, 5), 1.0f + value_of(b, layer + "input_layernorm.weight", 5));
  EXPECT_EQ(found("blk.0.post_attention_norm.weight", {64}, 5),
            1.0f + value_of(b, layer + "post_attention_layernorm.weight", 5));
  EXPECT_EQ(found("blk.1.attn_q_norm.weight", {32}, 3),
            1.0f + value_of(b, "model.layers.1.self_attn.q_norm.weight", 3));
  EXPECT_EQ(found("output_norm.weight", {64}, 9), 1.0f + value_of(b, "model.norm.weight", 9));
  EXPECT_EQ(found("blk.0.ssm_norm.weight", {8}, 3), value_of(b, layer + "linear_attn.norm.weight", 3))
      << "nothing added";
  EXPECT_EQ(found("blk.0.ssm_a", {4}, 2), -std::exp(value_of(b, layer + "linear_attn.A_log", 2)));
  EXPECT_EQ(found("blk.0.ssm_conv1d.weight", {96, 4}, 7), value_of(b, layer + "linear_attn.conv1d.weight", 7));
  EXPECT_EQ(found("blk.0.ffn_gate_inp_shexp.weight", {64}, 7), value_of(b, layer + "mlp.shared_expert_gate.weight", 7));
  EXPECT_EQ(found("blk.0.ffn_up.3.weight", {32, 64}, 1),
            value_of(b, layer + "mlp.experts.gate_up_proj", ((3 * 64) + 32) * 64 + 1));
}

TEST(DeltaFolder, FusedByKeyHeadIsPutInOrder) {
  const HfBuilder b = hybrid_folder("qwen3_next", Architecture::kQwen3Next);
  const auto checkpoint = open(b);
  const auto* qkv = reinterpret_cast<const float*>(checkpoint->require("blk.0.attn_qkv.weight", {96, 64}).view.data());
  const auto* z = reinterpret_cast<const float*>(checkpoint->require("blk.0.attn_gate.weight", {32, 64}).view.data());
  const std::string fused = "model.layers.0.linear_attn.in_proj_qkvz.weight";
  // Rows of a key head: 16 of q, 16 of k, 16 of v, 16 of z.
  EXPECT_EQ(qkv[16 * 64], value_of(b, fused, 64 * 64)) << "q of the second key head";
  EXPECT_EQ(qkv[32 * 64], value_of(b, fused, 16 * 64)) << "k of the first";
  EXPECT_EQ(qkv[80 * 64 + 1], value_of(b, fused, 96 * 64 + 1)) << "v of the third value head";
  EXPECT_EQ(z[16 * 64 + 2], value_of(b, fused, 112 * 64 + 2));
  EXPECT_NE(checkpoint->find("blk.0.ssm_ba.weight"), nullptr);
}

TEST(DeltaFolder, ExpertsMayBeStoredOneByOne) {
  HfBuilder b = hybrid_folder("qwen3_5_moe_text", Architecture::kQwen35Moe);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string experts = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    std::erase_if(b.tensors, [&](const HfTensor& t) { return t.name.starts_with(experts); });
    for (int e = 0; e < 4; ++e) {
      b.add(experts + std::to_string(e) + ".gate_proj.weight", {32, 64}, "F32");
      b.add(experts + std::to_string(e) + ".up_proj.weight", {32, 64}, "F32");
      b.add(experts + std::to_string(e) + ".down_proj.weight", {64, 32}, "F32");
    }
  }
  const auto checkpoint = open(b);
  EXPECT_EQ(*reinterpret_cast<const float*>(checkpoint->require("blk.1.ffn_up.2.weight", {32, 64}).view.data()),
            value_of(b, "model.layers.1.mlp.experts.2.up_proj.weight", 0));
}

TEST(DeltaFolder, BlocksThatDraftAreLeftOutAndNamed) {
  HfBuilder b = hybrid_folder("qwen3_next", Architecture::kQwen3Next);
  b.add("mtp.fc.weight", {64, 128}, "F32");
  b.add("mtp.layers.0.input_layernorm.weight", {64}, "F32");
  const auto checkpoint = open(b);
  EXPECT_THAT(checkpoint->metadata().back().value, HasSubstr("2 tensors"));
  EXPECT_THAT(checkpoint->metadata().back().value, HasSubstr("MTP"));
}

TEST(DeltaFolder, TensorsOfOtherShapesAreNamed) {
  for (const auto& [name, words] :
       {std::pair{"linear_attn.conv1d.weight", "conv1d.weight': expected BF16, F16 or F32 [96, 4]"},
        {"linear_attn.A_log", "A_log': expected BF16, F16 or F32 [4]"},
        {"mlp.shared_expert_gate.weight", "shared_expert_gate.weight': expected BF16, F16 or F32 [64]"},
        {"linear_attn.in_proj_qkvz.weight", "in_proj_qkvz.weight': expected BF16, F16 or F32 [128, 64]"},
        {"mlp.experts.gate_up_proj", "gate_up_proj': expected BF16, F16 or F32 [4, 64, 64]"}}) {
    HfBuilder b = hybrid_folder("qwen3_next", Architecture::kQwen3Next);
    HfTensor& t = b.tensor(std::string("model.layers.0.") + name);
    t.shape.back() += 1;
    std::int64_t n = 1;
    for (const std::int64_t d : t.shape) n *= d;
    t.data.resize(static_cast<std::size_t>(n) * 4);
    expect_error(ErrorKind::kFormat, {words}, [&] { open(b); });
  }
}

// Value heads of a folder are put in GGUF's order: rows of v, z, b and a, of the convolution, A and dt; columns of out.
TEST(DeltaConvert, PutsValueHeadsInGgufsOrder) {
  const HfBuilder b = hybrid_folder("qwen3_5_text", Architecture::kQwen35);
  const auto folder = open(b);
  TempFolder out;
  convert_to_gguf(*folder, out / "a.gguf", DType::kF32);
  const auto file = Checkpoint::open(out / "a.gguf");
  EXPECT_TRUE(file->config().delta.tiled);
  const auto at = [](const Checkpoint& c, const std::string& name, std::int64_t i) {
    return reinterpret_cast<const float*>(c.find(name)->view.data())[i];
  };
  // The second head of the file is the third of the folder: 2 key heads of 2 value heads each.
  EXPECT_EQ(at(*file, "blk.0.attn_gate.weight", 8 * 64 + 3), at(*folder, "blk.0.attn_gate.weight", 16 * 64 + 3));
  EXPECT_EQ(at(*file, "blk.0.attn_qkv.weight", (64 + 8) * 64), at(*folder, "blk.0.attn_qkv.weight", (64 + 16) * 64));
  EXPECT_EQ(at(*file, "blk.0.attn_qkv.weight", 9 * 64), at(*folder, "blk.0.attn_qkv.weight", 9 * 64)) << "q stays";
  EXPECT_EQ(at(*file, "blk.0.ssm_conv1d.weight", (64 + 8) * 4), at(*folder, "blk.0.ssm_conv1d.weight", (64 + 16) * 4));
  EXPECT_EQ(at(*file, "blk.0.ssm_alpha.weight", 64), at(*folder, "blk.0.ssm_alpha.weight", 2 * 64));
  EXPECT_EQ(at(*file, "blk.0.ssm_a", 1), at(*folder, "blk.0.ssm_a", 2));
  EXPECT_EQ(at(*file, "blk.0.ssm_dt.bias", 2), at(*folder, "blk.0.ssm_dt.bias", 1));
  EXPECT_EQ(at(*file, "blk.0.ssm_out.weight", 5 * 32 + 8), at(*folder, "blk.0.ssm_out.weight", 5 * 32 + 16));
  // From file to file nothing moves.
  convert_to_gguf(*file, out / "b.gguf", DType::kF32);
  const auto again = Checkpoint::open(out / "b.gguf");
  for (const CheckpointTensor& t : file->tensors()) EXPECT_EQ(at(*again, t.name, 1), at(*file, t.name, 1)) << t.name;
}

}  // namespace
}  // namespace mneme::test
