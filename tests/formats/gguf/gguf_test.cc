#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/gguf_checkpoint.h"
#include "src/checkpoint/gguf_file.h"
#include "src/checkpoint/gguf_model.h"
#include "tests/checkpoint/files.h"
#include "tests/checkpoint/gguf_builder.h"

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
  EXPECT_EQ(t.types[39], TokenType::kUnused);
  EXPECT_EQ(t.types[0], TokenType::kControl);
  EXPECT_EQ(t.bos, 0);
  EXPECT_EQ(t.eos, 1);
  EXPECT_TRUE(t.add_bos);
  ASSERT_EQ(t.merges.size(), 2u);
  EXPECT_EQ(t.merges[1], std::make_pair(std::string("ab"), std::string("c")));
  EXPECT_EQ(t.chat_template, "{{ messages }}<|end|>");

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

void rename_architecture(GgufBuilder& b, const std::string& to) {
  b.set("general.architecture", to.c_str());
  for (auto& [key, value] : b.entries)
    if (key.starts_with("llama.")) key = to + key.substr(5);
}

TEST(Gguf, Qwen2HasBiasesAndHalves) {
  GgufBuilder b = GgufBuilder::tiny();
  rename_architecture(b, "qwen2");
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

TEST(Gguf, Qwen3HasNormsOverHeads) {
  GgufBuilder b = GgufBuilder::tiny();
  rename_architecture(b, "qwen3");
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
  b.tensor("token_embd.weight").type = 12;
  TempFolder folder;
  const auto path = folder.write("q4_k.gguf", b.build());
  EXPECT_EQ(Checkpoint::open_tokenizer(path).tokens.size(), 38u);
  expect_error(ErrorKind::kUnsupported, {"token_embd.weight", "Q4_K"}, [&] { Checkpoint::open(path); });
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
