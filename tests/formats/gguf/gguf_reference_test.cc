// Keys of GGUF files as llama.cpp reads and writes them, and as earlier versions of `mneme convert` wrote them.
#include <gtest/gtest.h>

#include <cmath>

#include "src/formats/checkpoint.h"
#include "src/formats/gguf/gguf_checkpoint.h"
#include "tests/formats/files.h"
#include "tests/formats/gguf/gguf_builder.h"

namespace mneme::test {
namespace {

RopeConfig rope_of(const GgufBuilder& b) {
  const std::string bytes = b.build();
  return open_gguf(as_bytes(bytes), "rope.gguf")->config().rope;
}

GgufBuilder yarn() {
  GgufBuilder b = GgufBuilder::tiny();
  b.set("llama.rope.scaling.type", "yarn");
  b.set("llama.rope.scaling.factor", 8.0f);
  return b;
}

const double kDerived = 0.1 * std::log(8.0) + 1.0;

TEST(YarnAmplitude, AttnFactorIsOnTopAndYarnAttnFactorIsTheWhole) {
  GgufBuilder b = yarn();
  EXPECT_EQ(rope_of(b).attention_factor, 0.0) << "derived";
  b.set("llama.rope.scaling.attn_factor", 1.25f);
  EXPECT_NEAR(rope_of(b).attention_factor, 1.25 * kDerived, 1e-12);
  b.erase("llama.rope.scaling.attn_factor");
  b.set("llama.rope.scaling.yarn_attn_factor", 1.5f);
  EXPECT_EQ(rope_of(b).attention_factor, 1.5) << "as llama.cpp's converter writes config.json's attention_factor";
}

TEST(YarnAmplitude, BothKeysAgreeOrAreNamed) {
  GgufBuilder b = yarn();
  b.set("llama.rope.scaling.yarn_attn_factor", 1.5f);
  b.set("llama.rope.scaling.attn_factor", static_cast<float>(1.5 / kDerived));
  EXPECT_NEAR(rope_of(b).attention_factor, 1.5, 1e-6);
  b.set("llama.rope.scaling.attn_factor", 1.5f);
  expect_error(ErrorKind::kFormat, {"rope.scaling.yarn_attn_factor", "'llama.rope.scaling.attn_factor'"},
               [&] { rope_of(b); });
  for (const char* key : {"llama.rope.scaling.yarn_attn_factor", "llama.rope.scaling.attn_factor"}) {
    GgufBuilder zero = yarn();
    zero.set(key, 0.0f);
    expect_error(ErrorKind::kFormat, {key, "more than 0"}, [&] { rope_of(zero); });
  }
}

// What put_config() and put_tokenizer() wrote until 2026-11: the ratio under yarn_attn_factor. Files of byte-level
// tokenizers have mneme.tokenizer.ignore_merges; those of SentencePiece ones the order of keys alone.
TEST(YarnAmplitude, EarlierConvertedFilesKeepTheRatio) {
  GgufBuilder b = yarn();
  b.set("llama.rope.scaling.yarn_attn_factor", 1.25f);
  GgufBuilder with_key = b;
  with_key.set("mneme.tokenizer.ignore_merges", false);
  EXPECT_NEAR(rope_of(with_key).attention_factor, 1.25 * kDerived, 1e-12);

  GgufBuilder in_order;
  in_order.set("general.architecture", "llama");
  in_order.set("general.name", "tiny");
  in_order.set("general.file_type", 1u);
  in_order.set("general.quantization_version", 2u);
  for (const auto& [key, value] : b.entries)
    if (!key.starts_with("general.")) in_order.set_raw(key, value);
  in_order.tensors = b.tensors;
  EXPECT_NEAR(rope_of(in_order).attention_factor, 1.25 * kDerived, 1e-12);
}

TEST(YarnAmplitude, OfMistral3IsDividedByTheMultipliersScale) {
  GgufBuilder b = yarn();
  b.rename_architecture("mistral3");
  b.set("mistral3.rope.scaling.yarn_log_multiplier", 1.0f);
  EXPECT_EQ(rope_of(b).attention_factor, 1.0);
  b.set("mistral3.rope.scaling.attn_factor", 1.25f);
  EXPECT_EQ(rope_of(b).attention_factor, 1.25);
  b.erase("mistral3.rope.scaling.attn_factor");
  b.set("mistral3.rope.scaling.yarn_attn_factor", 1.5f);
  EXPECT_EQ(rope_of(b).attention_factor, 1.5);
}

TEST(Mistral3, WithoutATemperatureHasNoneAndNeedsNoContext) {
  GgufBuilder b = GgufBuilder::tiny();
  b.rename_architecture("mistral3");
  const std::string bytes = b.build();
  const ModelConfig c = open_gguf(as_bytes(bytes), "mistral-small-3.1.gguf")->config();
  EXPECT_EQ(std::tuple(c.temperature, c.temperature_context), std::tuple(0.0, 0));
}

TEST(LinearFactor, OfBothKeysIsOneOrNamed) {
  GgufBuilder b = GgufBuilder::tiny();
  b.set("llama.rope.scale_linear", 4.0f);
  b.set("llama.rope.scaling.factor", 4.0f);
  EXPECT_EQ(rope_of(b).factor, 4.0);
  b.set("llama.rope.scaling.factor", 8.0f);
  expect_error(ErrorKind::kFormat, {"rope.scale_linear", "rope.scaling.factor", "4", "8"}, [&] { rope_of(b); });
}

TEST(Experts, AMixtureHasOneAtLeast) {
  GgufBuilder b = GgufBuilder::mixture();
  b.set("qwen3moe.expert_count", 0u);
  const std::string bytes = b.build();
  expect_error(ErrorKind::kFormat, {"number of experts: expected 1 to"}, [&] { open_gguf(as_bytes(bytes), "m.gguf"); });
}

// A model in two parts whose first has general.alignment, as gguf-py writes it, or whose second is padded by the
// default in spite of it, as llama.cpp's gguf-split does.
class SplitAlignment : public testing::Test {
 protected:
  std::string parts(std::uint64_t first, std::uint64_t second) {
    GgufBuilder whole = GgufBuilder::tiny(), a = whole, b;
    a.tensors.clear();
    a.alignment = first;
    if (first != 32) a.set("general.alignment", static_cast<std::uint32_t>(first));
    b.alignment = second;
    for (GgufBuilder* part : {&a, &b}) {
      part->set("split.no", part == &a ? 0u : 1u);
      part->set("split.count", 2u);
    }
    for (std::size_t i = 0; i < whole.tensors.size(); ++i) (i < 2 ? a : b).tensors.push_back(whole.tensors[i]);
    whole_ = whole.tensors;
    second_ = b.build();
    folder_.write("m-00001-of-00002.gguf", a.build());
    folder_.write("m-00002-of-00002.gguf", second_);
    return (folder_ / "m-00001-of-00002.gguf").string();
  }
  void expect_values(const std::string& path) {
    const auto checkpoint = Checkpoint::open(path);
    for (const GgufBuilder::Tensor& t : whole_)
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(checkpoint->find(t.name)->view.data()), t.data.size()),
                t.data)
          << t.name;
  }
  TempFolder folder_;
  std::vector<GgufBuilder::Tensor> whole_;
  std::string second_;
};

TEST_F(SplitAlignment, OfAPartWithoutTheKeyIsTheFirstParts) {
  for (const std::uint64_t alignment : {64, 256, 4096}) expect_values(parts(alignment, alignment));
}

TEST_F(SplitAlignment, OfAPartPaddedByTheDefaultIsTheDefault) {
  for (const std::uint64_t alignment : {64, 256, 4096}) expect_values(parts(alignment, 32));
  expect_values(parts(32, 32));
}

TEST_F(SplitAlignment, ThatFitsNeitherIsNamed) {
  const std::string path = parts(256, 1024);
  expect_error(ErrorKind::kFormat, {"m-00002-of-00002.gguf", "256", "32", "general.alignment"},
               [&] { Checkpoint::open(path); });
  parts(256, 256);
  folder_.write("m-00002-of-00002.gguf", second_ + std::string(512, '\0'));
  expect_error(ErrorKind::kFormat, {"m-00002-of-00002.gguf", "end where the file"}, [&] { Checkpoint::open(path); });
}

}  // namespace
}  // namespace mneme::test
