// Valid files truncated and with bytes changed at random: each gives an Error, or a checkpoint whose tensors are inside
// the file.
#include <gtest/gtest.h>

#include <string>

#include "src/base/rng.h"
#include "src/formats/checkpoint.h"
#include "src/formats/gguf/gguf_checkpoint.h"
#include "src/formats/gguf/gguf_file.h"
#include "src/formats/gguf/gguf_model.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/formats/safetensors/safetensors.h"
#include "tests/formats/gguf/gguf_builder.h"
#include "tests/formats/safetensors/hf_builder.h"

namespace mneme::test {
namespace {

// Calls use(bytes), which must return or throw an Error; counts the returns.
template <typename Use>
int count_parsed(const std::string& bytes, Use use) {
  try {
    use(bytes);
    return 1;
  } catch (const Error& e) {
    EXPECT_FALSE(std::string(e.what()).empty());
    return 0;
  }
}

void change(std::string& bytes, std::size_t within, Rng& rng) {
  static constexpr unsigned char kNasty[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '"', '{', '[', '-', '9'};
  for (std::uint64_t n = 1 + rng.below(4); n > 0; --n) {
    char& c = bytes[rng.below(within)];
    switch (rng.below(3)) {
      case 0:
        c = static_cast<char>(rng.below(256));
        break;
      case 1:
        c = static_cast<char>(c ^ (1 << rng.below(8)));
        break;
      default:
        c = kNasty[rng.below(sizeof(kNasty))];
    }
  }
}

void use_gguf(const std::string& bytes) {
  const auto checkpoint = open_gguf(as_bytes(bytes), "mangled.gguf");
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  for (const CheckpointTensor& t : checkpoint->tensors()) {
    const std::size_t size = t.view.rank() == 1 ? t.view.stride_bytes() : t.view.dim(0) * t.view.stride_bytes();
    ASSERT_GE(t.view.data(), begin);
    ASSERT_LE(t.view.data() + size, begin + bytes.size());
  }
  ASSERT_EQ(std::ssize(checkpoint->tokenizer().tokens), checkpoint->config().vocab);
  ASSERT_EQ(checkpoint->tokenizer().types.size(), checkpoint->tokenizer().tokens.size());
}

void use_safetensors(const std::string& bytes) {
  std::size_t total = 0;
  for (const SafetensorsTensor& t : parse_safetensors(as_bytes(bytes), "mangled.safetensors")) total += t.data.size();
  ASSERT_LT(total, bytes.size());
}

void use_config(const std::string& bytes) {
  const Json json = parse_json(bytes, "config.json", kMaxConfigBytes);
  const ModelConfig c = read_hf_config(JsonRef(json, "config.json"));
  ASSERT_GT(c.head_dim, 0);
  ASSERT_EQ(c.n_heads % c.n_kv_heads, 0);
}

void use_tokenizer(const std::string& bytes) {
  const Json json = parse_json(bytes, "tokenizer.json", kMaxTokenizerBytes);
  const TokenizerData t = read_tokenizer_json(JsonRef(json, "tokenizer.json"));
  ASSERT_EQ(t.types.size(), t.tokens.size());
}

template <typename Use>
void corrupt(const std::string& good, std::size_t header, int flips, Use use) {
  ASSERT_EQ(count_parsed(good, use), 1);
  Rng rng(good.size());
  int cut = 0, changed = 0;
  for (std::size_t n = 0; n < header; ++n) cut += count_parsed(good.substr(0, n), use);
  for (int i = 0; i < 200; ++i) cut += count_parsed(good.substr(0, rng.below(good.size())), use);
  for (int i = 0; i < flips; ++i) {
    std::string bytes = good;
    change(bytes, i % 8 == 0 ? bytes.size() : std::min(header, bytes.size()), rng);
    changed += count_parsed(bytes, use);
  }
  EXPECT_EQ(cut, 0) << "a file cut short is never whole";
  EXPECT_GT(changed, 0) << "changes inside text and numbers leave some files whole";
  EXPECT_LT(changed, flips);
}

std::string small_gguf() {
  GgufBuilder b = GgufBuilder::tiny();
  return b.build();
}

TEST(CorruptFile, Gguf) {
  const std::string good = small_gguf();
  corrupt(good, good.find("blk.1.ffn_down.weight") + 60, 6000, use_gguf);
}

TEST(CorruptFile, GgufOfBlocksOf256) {
  const std::string good = read_file(MNEME_SOURCE_DIR "/tests/fuzz/corpus/gguf/k_quants.gguf");
  corrupt(good, good.find("blk.0.ffn_down.weight") + 60, 6000, use_gguf);
}

TEST(CorruptFile, GgufVocabulary) {
  GgufBuilder b;
  b.set_tokenizer(60);
  const std::string good = b.build();
  corrupt(good, good.size(), 6000, [](const std::string& bytes) {
    const TokenizerData t =
        read_gguf_tokenizer(GgufFile::parse(as_bytes(bytes), "vocab.gguf", GgufFile::Tensors::kSkip));
    ASSERT_EQ(t.types.size(), t.tokens.size());
  });
}

TEST(CorruptFile, Safetensors) {
  const std::string good = safetensors(HfBuilder::tiny().tensors);
  corrupt(good, good.find("}}") + 2, 4000, use_safetensors);
}

TEST(CorruptFile, Config) {
  Json config = HfBuilder::tiny().config;
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  const std::string good = config.dump();
  corrupt(good, good.size(), 6000, use_config);
}

TEST(CorruptFile, Tokenizer) {
  for (const Json& json : {HfBuilder::byte_level_tokenizer(), HfBuilder::sentencepiece_tokenizer()}) {
    const std::string good = json.dump();
    corrupt(good, good.size(), 4000, use_tokenizer);
  }
}

}  // namespace
}  // namespace mneme::test
