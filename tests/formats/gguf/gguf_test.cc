#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "src/formats/checkpoint.h"
#include "src/formats/gguf/gguf_checkpoint.h"
#include "src/formats/gguf/gguf_file.h"
#include "src/formats/gguf/gguf_model.h"
#include "src/formats/weight_names.h"
#include "tests/formats/files.h"
#include "tests/formats/gguf/gguf_builder.h"

namespace mneme::test {
namespace {

TEST(Gguf, ReadsConfigTokenizerAndTensors) {
  const GgufBuilder b = GgufBuilder::tiny();
  TempFolder folder;
  const auto checkpoint = Checkpoint::open(folder.write("tiny.gguf", b.build()));
  const ModelConfig& c = checkpoint->config();
  EXPECT_EQ(checkpoint->format(), "GGUF v3");
  EXPECT_EQ(c.architecture, Architecture::kLlama);
  EXPECT_EQ(c.name, "tiny");
  EXPECT_EQ(c.n_layers, 2);
  EXPECT_EQ(c.hidden, 64);
  EXPECT_EQ(c.ffn, 96);
  EXPECT_EQ(c.n_heads, 4);
  EXPECT_EQ(c.n_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.vocab, 40);
  EXPECT_EQ(c.max_context, 512);
  EXPECT_FLOAT_EQ(static_cast<float>(c.rms_eps), 1e-5f);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.rope.pairs, RopePairs::kNeighbours);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kNone);

  const TokenizerData& t = checkpoint->tokenizer();
  EXPECT_EQ(t.kind, TokenizerKind::kByteBpe);
  EXPECT_EQ(t.pre, "qwen2");
  ASSERT_EQ(t.tokens.size(), 40u) << "padded to the embedding's rows";
  EXPECT_EQ(t.tokens[39], "[PAD39]");
  EXPECT_EQ(t.types[39], TokenType::kAbsent);
  EXPECT_EQ(t.types[0], TokenType::kControl);
  EXPECT_EQ(t.bos, 0);
  EXPECT_EQ(t.eos, 1);
  EXPECT_TRUE(t.add_bos);
  ASSERT_EQ(t.merges.size(), 2u);
  EXPECT_EQ(t.merges[1], std::make_pair(std::string("ab"), std::string("c")));
  EXPECT_EQ(t.chat_template, "{{ messages }}<|end|>");
  ASSERT_EQ(t.named_templates.size(), 1u);
  EXPECT_EQ(t.named_templates[0], std::make_pair(std::string("tool_use"), std::string("{{ tools }}<|end|>")));

  ASSERT_EQ(checkpoint->tensors().size(), b.tensors.size());
  for (std::size_t i = 0; i < b.tensors.size(); ++i) {
    const CheckpointTensor& found = checkpoint->tensors()[i];
    EXPECT_EQ(found.name, b.tensors[i].name);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(found.view.data()), b.tensors[i].data.size()),
              b.tensors[i].data);
  }
  const ConstTensorView q = checkpoint->require("blk.1.attn_q.weight", {128, 64}).view;
  EXPECT_EQ(q.dtype(), DType::kQ8_0);
  EXPECT_EQ(checkpoint->require("blk.1.attn_q.weight", {kAnySize, 64}).view.data(), q.data());
  expect_error(ErrorKind::kFormat, {"blk.1.attn_q.weight", "[64, 64]", "[128, 64]"}, [&] {
    checkpoint->require("blk.1.attn_q.weight", {64, 64});
  });
  expect_error(ErrorKind::kFormat, {"nothing.weight", "missing"}, [&] { checkpoint->require("nothing.weight", {1}); });
  EXPECT_EQ(checkpoint->find("nothing.weight"), nullptr);
}

TEST(Gguf, ReadsVersion2) {
  GgufBuilder b = GgufBuilder::tiny();
  b.version = 2;
  const std::string bytes = b.build();
  EXPECT_EQ(open_gguf(as_bytes(bytes), "v2.gguf")->format(), "GGUF v2");
}

TEST(Gguf, RespectsItsAlignment) {
  GgufBuilder b = GgufBuilder::tiny();
  b.alignment = 256;
  b.set("general.alignment", 256u);
  const std::string bytes = b.build();
  const auto checkpoint = open_gguf(as_bytes(bytes), "aligned.gguf");
  EXPECT_EQ((checkpoint->tensors()[1].view.data() - reinterpret_cast<const std::byte*>(bytes.data())) % 256, 0);
}

TEST(Gguf, HeadDimensionFollowsFromSizesWhereTheFileDoesNotSay) {
  GgufBuilder b = GgufBuilder::tiny();
  b.erase("llama.attention.key_length");
  b.erase("llama.attention.value_length");
  b.erase("llama.rope.dimension_count");
  b.set("llama.attention.head_count", 2u);
  b.set("llama.attention.head_count_kv", 1u);
  for (const char* layer : {"blk.0.", "blk.1."}) {
    const std::string p = layer;
    b.erase_tensor(p + "attn_q.weight"), b.add(p + "attn_q.weight", {64, 64}, 0);
    b.erase_tensor(p + "attn_k.weight"), b.add(p + "attn_k.weight", {64, 32}, 0);
    b.erase_tensor(p + "attn_v.weight"), b.add(p + "attn_v.weight", {64, 32}, 0);
    b.erase_tensor(p + "attn_output.weight"), b.add(p + "attn_output.weight", {64, 64}, 0);
  }
  const std::string bytes = b.build();
  EXPECT_EQ(open_gguf(as_bytes(bytes), "plain.gguf")->config().head_dim, 32);
}

TEST(Gguf, Qwen2HasBiasesAndHalves) {
  GgufBuilder b = GgufBuilder::tiny();
  b.rename_architecture("qwen2");
  std::string bytes = b.build();
  expect_error(ErrorKind::kFormat, {"blk.0.attn_q.bias", "missing"}, [&] { open_gguf(as_bytes(bytes), "q.gguf"); });
  for (const char* layer : {"blk.0.", "blk.1."}) {
    b.add(std::string(layer) + "attn_q.bias", {128}, 0);
    b.add(std::string(layer) + "attn_k.bias", {64}, 0);
    b.add(std::string(layer) + "attn_v.bias", {64}, 0);
  }
  bytes = b.build();
  const auto checkpoint = open_gguf(as_bytes(bytes), "q.gguf");
  EXPECT_EQ(checkpoint->config().architecture, Architecture::kQwen2);
  EXPECT_TRUE(checkpoint->config().qkv_bias);
  EXPECT_EQ(checkpoint->config().rope.pairs, RopePairs::kHalves);
}

// llama.cpp's converter may fuse them in any architecture.
TEST(Gguf, FusedMatricesAreTakenApart) {
  GgufBuilder b = GgufBuilder::tiny();
  b.rename_architecture("qwen2");
  for (const std::string p : {"blk.0.", "blk.1."}) {
    for (const char* part : {"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"}) b.erase_tensor(p + part + ".weight");
    b.add(p + "attn_qkv.weight", {64, 256}, 8);
    b.add(p + "attn_qkv.bias", {256}, 0);
    b.add(p + "ffn_up.weight", {64, 192}, 8);
  }
  std::string bytes = b.build();
  const auto checkpoint = open_gguf(as_bytes(bytes), "fused.gguf");
  constexpr std::ptrdiff_t kRow = 2 * 34;
  const ConstTensorView q = checkpoint->require("blk.1.attn_q.weight", {128, 64}).view;
  EXPECT_EQ(checkpoint->require("blk.1.attn_k.weight", {64, 64}).view.data(), q.data() + 128 * kRow);
  EXPECT_EQ(checkpoint->require("blk.1.attn_v.weight", {64, 64}).view.data(), q.data() + 192 * kRow);
  const ConstTensorView gate = checkpoint->require("blk.1.ffn_gate.weight", {96, 64}).view;
  EXPECT_EQ(checkpoint->require("blk.1.ffn_up.weight", {96, 64}).view.data(), gate.data() + 96 * kRow);
  const ConstTensorView bias = checkpoint->require("blk.0.attn_q.bias", {128}).view;
  EXPECT_EQ(checkpoint->require("blk.0.attn_v.bias", {64}).view.data(), bias.data() + 192 * 4);
  b.add("blk.1.attn_k.weight", {64, 64}, 8);
  bytes = b.build();
  expect_error(ErrorKind::kFormat, {"'blk.1.attn_k.weight'", "twice"}, [&] { open_gguf(as_bytes(bytes), "f.gguf"); });
}

// llama.cpp's converter writes olmo3's as bools, and windows in a key of their own.
TEST(Gguf, LayersWithWindowsAreFlags) {
  GgufBuilder b = GgufBuilder::tiny();
  b.set("llama.attention.sliding_window", 16u);
  b.set_array<std::uint8_t>("llama.attention.sliding_window_pattern", 7, {1, 0});
  std::string bytes = b.build();
  EXPECT_EQ(open_gguf(as_bytes(bytes), "w.gguf")->config().windowed, (std::vector<bool>{true, false}));
  b.set_array<std::int32_t>("llama.attention.sliding_window_pattern", 5, {0, 1});
  bytes = b.build();
  EXPECT_EQ(open_gguf(as_bytes(bytes), "w.gguf")->config().windowed, (std::vector<bool>{false, true}));
  b.set_array<std::int32_t>("llama.attention.sliding_window_pattern", 5, {0, 1, 1});
  bytes = b.build();
  expect_error(ErrorKind::kFormat, {"kinds of layers", "expected 2", "found 3"},
               [&] { open_gguf(as_bytes(bytes), "w.gguf"); });
  b.set_array<std::int32_t>("llama.attention.sliding_window_pattern", 5, {0, 1});
  b.set("llama.rope.freq_base_swa", 10000.0f);
  bytes = b.build();
  EXPECT_NE(open_gguf(as_bytes(bytes), "w.gguf"), nullptr);
  b.set("llama.rope.freq_base_swa", 500.0f);
  bytes = b.build();
  expect_error(ErrorKind::kUnsupported, {"llama.rope.freq_base_swa", "500"},
               [&] { open_gguf(as_bytes(bytes), "w.gguf"); });
}

TEST(Gguf, FusedMatricesOfAnotherHeightAreNamed) {
  GgufBuilder b = GgufBuilder::tiny();
  for (const char* part : {"attn_q", "attn_k", "attn_v"}) b.erase_tensor("blk.0." + std::string(part) + ".weight");
  b.add("blk.0.attn_qkv.weight", {64, 224}, 8);
  const std::string bytes = b.build();
  expect_error(ErrorKind::kFormat, {"'blk.0.attn_q.weight'", "missing"}, [&] { open_gguf(as_bytes(bytes), "f.gguf"); });
}

TEST(Gguf, MixturesAreStacks) {
  GgufBuilder b = GgufBuilder::mixture();
  std::string bytes = b.build();
  const auto checkpoint = open_gguf(as_bytes(bytes), "m.gguf");
  const ExpertConfig& e = checkpoint->config().experts;
  EXPECT_EQ(std::tuple(e.n, e.n_used, e.ffn, e.normalise), std::tuple(4, 2, 32, true));
  EXPECT_TRUE(checkpoint->config().qk_norm);
  EXPECT_EQ(checkpoint->config().rope.pairs, RopePairs::kHalves);
  const WeightSpec up{.name = "blk.1.ffn_up_exps.weight", .hf_name = {}, .n_out = 32, .n_in = 64, .n_experts = 4};
  const auto find = [&](const std::string& name) { return checkpoint->find(name); };
  const ConstTensorView stack = checkpoint->require(up.name, {4, 32, 64}).view, third = expert_of(find, up, 2).view;
  EXPECT_EQ(third.to_string(), "mxfp4 [32, 64]");
  EXPECT_EQ(third.data(), stack.data() + 2 * 32 * 2 * 17) << "rows of two blocks of 17 bytes";
  b.set("qwen3moe.expert_weights_norm", false);
  bytes = b.build();
  EXPECT_FALSE(open_gguf(as_bytes(bytes), "m.gguf")->config().experts.normalise);
}

TEST(Gguf, Mistral3TurnsNeighboursAndItsMultiplierDividesTheScaleOfCosines) {
  GgufBuilder b = GgufBuilder::tiny();
  b.rename_architecture("mistral3");
  b.set("mistral3.rope.scaling.type", "yarn");
  b.set("mistral3.rope.scaling.factor", 4.0f);
  b.set("mistral3.rope.scaling.original_context_length", 128u);
  b.set("mistral3.attention.temperature_scale", 0.125f);
  b.set("mistral3.rope.scaling.yarn_log_multiplier", 1.0f);
  std::string bytes = b.build();
  ModelConfig c = open_gguf(as_bytes(bytes), "m.gguf")->config();
  EXPECT_EQ(c.rope.pairs, RopePairs::kNeighbours);
  EXPECT_EQ(std::tuple(c.temperature, c.temperature_context, c.rope.attention_factor), std::tuple(0.125, 128, 1.0));
  b.set("mistral3.rope.scaling.yarn_log_multiplier", 0.0f);
  bytes = b.build();
  EXPECT_EQ(open_gguf(as_bytes(bytes), "m.gguf")->config().rope.attention_factor, 0.0) << "no divisor";
  b.erase("mistral3.rope.scaling.yarn_log_multiplier");
  bytes = b.build();
  EXPECT_EQ(open_gguf(as_bytes(bytes), "m.gguf")->config().rope.attention_factor, 0.0) << "absent means 0";
}

TEST(Gguf, Qwen3HasNormsOverHeads) {
  GgufBuilder b = GgufBuilder::tiny();
  b.rename_architecture("qwen3");
  for (const char* layer : {"blk.0.", "blk.1."}) {
    b.add(std::string(layer) + "attn_q_norm.weight", {32}, 0);
    b.add(std::string(layer) + "attn_k_norm.weight", {32}, 0);
  }
  const std::string bytes = b.build();
  const auto checkpoint = open_gguf(as_bytes(bytes), "q.gguf");
  EXPECT_TRUE(checkpoint->config().qk_norm);
  EXPECT_FALSE(checkpoint->config().qkv_bias);
}

TEST(Gguf, UntiedOutput) {
  GgufBuilder b = GgufBuilder::tiny();
  b.add("output.weight", {64, 40}, 8);
  const std::string bytes = b.build();
  EXPECT_FALSE(open_gguf(as_bytes(bytes), "u.gguf")->config().tied_embeddings);
}

TEST(Gguf, RopeScalings) {
  const auto rope = [](GgufBuilder b) {
    const std::string bytes = b.build();
    return open_gguf(as_bytes(bytes), "rope.gguf")->config().rope;
  };
  GgufBuilder b = GgufBuilder::tiny();
  b.set("llama.rope.scaling.type", "none");
  EXPECT_EQ(rope(b).scaling, RopeScaling::kNone);
  b.set("llama.rope.scaling.type", "linear");
  b.set("llama.rope.scaling.factor", 4.0f);
  EXPECT_EQ(rope(b).scaling, RopeScaling::kLinear);
  EXPECT_EQ(rope(b).factor, 4.0);
  b.set("llama.rope.scaling.type", "dynamic");
  EXPECT_EQ(rope(b).scaling, RopeScaling::kDynamic);
  EXPECT_EQ(rope(b).original_context, 512);
  b.set("llama.rope.scaling.type", "yarn");
  b.set("llama.rope.scaling.original_context_length", 128u);
  EXPECT_EQ(rope(b).scaling, RopeScaling::kYarn);
  EXPECT_EQ(rope(b).original_context, 128);
  EXPECT_EQ(rope(b).attention_factor, 0.0) << "derived";
  b.set("llama.rope.scaling.attn_factor", 0.5f);
  EXPECT_NEAR(rope(b).attention_factor, 0.5 * (0.1 * std::log(4.0) + 1.0), 1e-12);
  b.add("rope_freqs.weight", {16}, 0);
  for (int i = 0; i < 16; ++i) std::memcpy(b.tensor("rope_freqs.weight").data.data() + 4 * i, "\0\0\0\x40", 4);  // 2
  EXPECT_EQ(rope(b).freq_factors, std::vector<float>(16, 2.0f));
}

TEST(Gguf, OldLinearScalingHasNoType) {
  GgufBuilder b = GgufBuilder::tiny();
  b.set("llama.rope.scale_linear", 8.0f);
  const std::string bytes = b.build();
  const auto checkpoint = open_gguf(as_bytes(bytes), "old.gguf");
  EXPECT_EQ(checkpoint->config().rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(checkpoint->config().rope.factor, 8.0);
}

TEST(Gguf, VocabularyOnlyFilesGiveTheirTokenizer) {
  GgufBuilder b;
  b.set("general.architecture", "gpt2");
  b.set_tokenizer(38);
  TempFolder folder;
  const auto path = folder.write("vocab.gguf", b.build());
  EXPECT_EQ(Checkpoint::open_tokenizer(path).tokens.size(), 38u);
  expect_error(ErrorKind::kFormat, {"vocab.gguf", "no tensors", "vocabulary-only"}, [&] { Checkpoint::open(path); });
}

TEST(Gguf, TokenizerOfAFileWhoseTensorsAreUnknown) {
  GgufBuilder b = GgufBuilder::tiny();
  b.tensor("token_embd.weight").type = 19;
  TempFolder folder;
  const auto path = folder.write("iq1_s.gguf", b.build());
  EXPECT_EQ(Checkpoint::open_tokenizer(path).tokens.size(), 38u);
  expect_error(ErrorKind::kUnsupported, {"token_embd.weight", "IQ1_S"}, [&] { Checkpoint::open(path); });
}

TEST(Gguf, ReadsEveryQuantisedTypeMixedInOneFile) {
  for (const std::uint32_t type : {2u, 3u, 6u, 7u, 8u, 10u, 11u, 12u, 13u, 14u, 20u, 23u, 39u}) {
    GgufBuilder b = GgufBuilder::wide(type, 14);
    for (const char* name : {"blk.1.ffn_down.weight", "blk.1.attn_v.weight"}) {
      const auto dims = b.tensor(name).dims;
      b.erase_tensor(name);
      b.add(name, dims, 13);
    }
    const std::string bytes = b.build();
    const auto checkpoint = open_gguf(as_bytes(bytes), "mixed.gguf");
    EXPECT_EQ(checkpoint->require("token_embd.weight", {40, 256}).view.dtype(), DType::kQ6_K);
    EXPECT_EQ(checkpoint->require("blk.1.ffn_down.weight", {256, 512}).view.dtype(), DType::kQ5_K);
    const ConstTensorView up = checkpoint->require("blk.0.ffn_up.weight", {512, 256}).view;
    EXPECT_EQ(up.dtype(), *dtype_of_ggml(type));
    EXPECT_EQ(ggml_of_dtype(up.dtype()), type);
    EXPECT_EQ(std::memcmp(up.data(), b.tensor("blk.0.ffn_up.weight").data.data(),
                          b.tensor("blk.0.ffn_up.weight").data.size()),
              0);
  }
}

// Seeds of tests/fuzz/gguf_fuzz.cc: a fuzzer that starts from refused files would never get past the header.
TEST(Gguf, SeedsOfTheFuzzerAreWhole) {
  const std::string folder = MNEME_SOURCE_DIR "/tests/fuzz/corpus/gguf/";
  for (const char* name : {"llama.gguf", "q4_1.gguf", "five_bits.gguf", "k_quants.gguf"}) {
    const std::string bytes = read_file(folder + name);
    EXPECT_EQ(open_gguf(as_bytes(bytes), name)->tensors().size(), 11u) << name;
  }
  for (const auto& [name, architecture] :
       {std::pair{"gpt_oss.gguf", Architecture::kGptOss}, {"mistral3.gguf", Architecture::kMistral3}}) {
    const std::string bytes = read_file(folder + name);
    EXPECT_EQ(open_gguf(as_bytes(bytes), name)->config().architecture, architecture) << name;
  }
  const std::string part = read_file(folder + "part.gguf");
  expect_error(ErrorKind::kFormat, {"part 1 of 2"}, [&] { open_gguf(as_bytes(part), "part.gguf"); });
}

// A model in parts, as llama.cpp's gguf-split makes them: metadata in the first alone.
class SplitGguf : public testing::Test {
 protected:
  SplitGguf() {
    GgufBuilder whole = GgufBuilder::wide(12, 14);
    count_ = whole.tensors.size();
    parts_[0] = whole;
    parts_[1].alignment = parts_[2].alignment = 32;
    for (std::size_t i = 0; i < 3; ++i) {
      parts_[i].tensors.clear();
      parts_[i].set_raw("split.no",
                        GgufBuilder::raw<std::uint32_t>(2) + GgufBuilder::raw(static_cast<std::uint16_t>(i)));
      parts_[i].set_raw("split.count", GgufBuilder::raw<std::uint32_t>(2) + GgufBuilder::raw<std::uint16_t>(3));
      parts_[i].set_raw("split.tensors.count",
                        GgufBuilder::raw<std::uint32_t>(5) + GgufBuilder::raw(static_cast<std::int32_t>(count_)));
    }
    for (std::size_t i = 0; i < count_; ++i) parts_[3 * i / count_].tensors.push_back(whole.tensors[i]);
  }
  std::filesystem::path write() {
    for (std::size_t i = 0; i < 3; ++i) folder_.write(name(i + 1), parts_[i].build());
    return folder_ / name(1);
  }
  static std::string name(std::size_t no) { return "model-0000" + std::to_string(no) + "-of-00003.gguf"; }
  void expect_refusal(ErrorKind kind, std::initializer_list<std::string> words) {
    const auto path = write();
    expect_error(kind, words, [&] { Checkpoint::open(path); });
  }

  TempFolder folder_;
  GgufBuilder parts_[3];
  std::size_t count_ = 0;
};

TEST_F(SplitGguf, IsOneModel) {
  const auto path = write();
  const auto checkpoint = Checkpoint::open(path);
  EXPECT_EQ(checkpoint->format(), "GGUF v3, 3 parts");
  EXPECT_EQ(checkpoint->tensors().size(), count_);
  EXPECT_EQ(checkpoint->config().n_layers, 2);
  EXPECT_EQ(Checkpoint::open_tokenizer(path).tokens.size(), 38u);
}

TEST_F(SplitGguf, FirstPartMayHaveTheMetadataAlone) {
  for (const auto& t : parts_[0].tensors) parts_[1].tensors.push_back(t);
  parts_[0].tensors.clear();
  EXPECT_EQ(Checkpoint::open(write())->tensors().size(), count_);
}

TEST_F(SplitGguf, OnlyTheFirstIsOpened) {
  write();
  for (const std::size_t no : {2, 3}) {
    const auto path = folder_ / name(no);
    const std::string part = "part " + std::to_string(no) + " of 3";
    expect_error(ErrorKind::kFormat, {name(no), part, name(1)}, [&] { Checkpoint::open(path); });
    expect_error(ErrorKind::kFormat, {name(no), part, name(1)}, [&] { Checkpoint::open_tokenizer(path); });
  }
}

TEST_F(SplitGguf, MissingPart) {
  const auto path = write();
  std::filesystem::remove(folder_ / name(2));
  expect_error(ErrorKind::kFile, {name(2), "part 2 of 3"}, [&] { Checkpoint::open(path); });
}

TEST_F(SplitGguf, NameWithoutANumber) {
  const auto path = folder_.write("model.gguf", parts_[0].build());
  expect_error(ErrorKind::kFormat, {"model.gguf", "-00001-of-00003.gguf"}, [&] { Checkpoint::open(path); });
}

TEST_F(SplitGguf, PartThatIsThereTwice) {
  const auto path = write();
  folder_.write(name(3), parts_[1].build());
  expect_error(ErrorKind::kFormat, {name(3), "expected part 3 of 3, found part 2 of 3"},
               [&] { Checkpoint::open(path); });
}

TEST_F(SplitGguf, PartOfAnotherSet) {
  parts_[1].set("split.count", 4u);
  expect_refusal(ErrorKind::kFormat, {name(2), "expected part 2 of 3, found part 2 of 4"});
}

TEST_F(SplitGguf, WholeFileInPlaceOfAPart) {
  parts_[2].erase("split.count");
  expect_refusal(ErrorKind::kFormat, {name(3), "expected part 3 of 3, found a whole file"});
}

TEST_F(SplitGguf, TensorInTwoParts) {
  parts_[2].tensors.push_back(parts_[0].tensors[0]);
  expect_refusal(ErrorKind::kFormat, {name(3), "'token_embd.weight' occurs twice"});
}

TEST_F(SplitGguf, FewerTensorsThanItSays) {
  parts_[2].tensors.pop_back();
  expect_refusal(ErrorKind::kFormat, {name(1), "expected " + std::to_string(count_) + " tensors in 3 parts"});
}

TEST_F(SplitGguf, TruncatedPart) {
  const auto path = write();
  const std::string part = parts_[1].build();
  folder_.write(name(2), part.substr(0, part.size() - 40));
  expect_error(ErrorKind::kFormat, {name(2), "of type q4_k has", "truncated"}, [&] { Checkpoint::open(path); });
}

TEST(Gguf, Falcon3AndTheOthersOfLlama3sKindAddBosWhereTheFileDoesNotSay) {
  for (const char* pre : {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken", "qwen2", "falcon", "smaug-bpe"}) {
    GgufBuilder b = GgufBuilder::tiny();
    b.set("tokenizer.ggml.pre", pre);
    b.erase("tokenizer.ggml.add_bos_token");
    const std::string bytes = b.build();
    const std::string_view name = pre;
    const bool adds = name != "qwen2" && name != "falcon" && name != "smaug-bpe";
    EXPECT_EQ(open_gguf(as_bytes(bytes), "pre.gguf")->tokenizer().add_bos, adds) << pre;
  }
}

TEST(Gguf, SentencePieceTokenizer) {
  GgufBuilder b = GgufBuilder::tiny();
  b.set("tokenizer.ggml.model", "llama");
  b.erase("tokenizer.ggml.merges");
  b.erase("tokenizer.ggml.add_bos_token");
  std::vector<float> scores(38);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = -static_cast<float>(i);
  b.set_array("tokenizer.ggml.scores", 6, scores);
  const std::string bytes = b.build();
  const TokenizerData t = open_gguf(as_bytes(bytes), "sp.gguf")->tokenizer();
  EXPECT_EQ(t.kind, TokenizerKind::kSentencePiece);
  EXPECT_TRUE(t.add_bos);
  EXPECT_TRUE(t.add_space_prefix);
  EXPECT_EQ(t.unk, 0);
  ASSERT_EQ(t.scores.size(), 40u);
  EXPECT_EQ(t.scores[37], -37.0f);
}

TEST(Gguf, FindsFurtherEndsByTheirNames) {
  GgufBuilder b;
  b.set("tokenizer.ggml.model", "gpt2");
  b.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "<|eot_id|>", "<|end_of_text|>", "<|im_end|>"});
  b.set_array("tokenizer.ggml.token_type", 5, std::vector<std::int32_t>{1, 3, 3, 1});
  b.set("tokenizer.ggml.merges", std::vector<std::string>{});
  b.set("tokenizer.ggml.eos_token_id", 2u);
  const std::string bytes = b.build();
  const auto t = read_gguf_tokenizer(GgufFile::parse(as_bytes(bytes), "ends.gguf", GgufFile::Tensors::kSkip));
  EXPECT_EQ(t.eog, std::vector<std::int32_t>{1}) << "the last is ordinary text, the third is eos";
  EXPECT_EQ(t.pre, "default");
}

TEST(Gguf, MetadataIsShownShortened) {
  GgufBuilder b = GgufBuilder::tiny();
  b.set("general.description", std::string(1000, 'x').c_str());
  const std::string bytes = b.build();
  bool seen = false;
  const auto checkpoint = open_gguf(as_bytes(bytes), "m.gguf");
  for (const MetadataEntry& e : checkpoint->metadata()) {
    EXPECT_LT(e.value.size(), 1000u);
    if (e.key != "tokenizer.ggml.token_type") continue;
    seen = true;
    EXPECT_EQ(e.type, "array of i32");
    EXPECT_EQ(e.value, "[3, 3, 1, 1, 1, 1, ...] (38 values)");
  }
  EXPECT_TRUE(seen);
}

TEST(Gguf, ShippedModel) {
  const std::filesystem::path path = std::filesystem::path(MNEME_SOURCE_DIR) / "models/needle-27m-q8_0.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto checkpoint = Checkpoint::open(path);
  EXPECT_EQ(checkpoint->config().n_layers, 8);
  EXPECT_EQ(checkpoint->config().group(), 4);
  EXPECT_EQ(checkpoint->config().vocab, 8192);
  EXPECT_EQ(checkpoint->tokenizer().merges.size(), 7931u);
  EXPECT_EQ(checkpoint->tensors().size(), 74u);
}

}  // namespace
}  // namespace mneme::test
