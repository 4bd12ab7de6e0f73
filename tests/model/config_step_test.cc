// A step of a model of each of some hundred configurations that files may have: none ends the process, and logits are
// numbers. tests/fuzz/step_fuzz.cc looks for others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/base/rng.h"
#include "tests/error_message.h"
#include "tests/model/config_maker.h"

namespace mneme {
namespace {

class ConfigStep : public testing::Test {
 protected:
  ThreadPool threads{1};
  CpuContext context{.pool = &threads};

  void expect_numbers(const ModelConfig& config) {
    const auto logits = test::step_of(config, context);
    ASSERT_TRUE(logits);
    EXPECT_TRUE(std::all_of(logits->begin(), logits->end(), [](float x) { return std::isfinite(x); }))
        << architecture_name(config.architecture);
  }
};

TEST_F(ConfigStep, ConfigurationsThatAreReadRun) {
  constexpr int kInputs = 24000;
  std::map<Architecture, int> read, ran;
  Rng rng(42);
  for (int i = 0; i < kInputs; ++i) {
    std::vector<std::uint8_t> bytes(96);
    for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(rng.below(256));
    const auto config = test::config_of_bytes(bytes);
    if (!config || ++read[config->architecture] > 60) continue;
    const auto logits = test::step_of(*config, context);
    if (!logits) continue;
    ++ran[config->architecture];
    ASSERT_TRUE(std::all_of(logits->begin(), logits->end(), [](float x) { return std::isfinite(x); }))
        << "input " << i << ", " << architecture_name(config->architecture);
  }
  for (const auto& [architecture, n] : ran) {
    EXPECT_GE(n, 10) << architecture_name(architecture);
  }
  EXPECT_EQ(ran.size(), families().size());
}

// Mistral Small 3.1 as llama.cpp's converter writes it: SIGFPE at the first step.
TEST_F(ConfigStep, Mistral3WithoutATemperatureLeavesQueriesAlone) {
  test::GgufBuilder file = test::GgufBuilder::tiny();
  file.rename_architecture("mistral3");
  const std::string bytes = file.build();
  const ModelConfig config =
      read_gguf_config(GgufFile::parse(std::as_bytes(std::span(bytes)), "mistral3.gguf", GgufFile::Tensors::kRead));
  expect_numbers(config);
  ModelConfig llama = config;
  llama.architecture = Architecture::kLlama;
  EXPECT_EQ(*test::step_of(config, context), *test::step_of(llama, context));
}

TEST_F(ConfigStep, Ministral3FolderWithoutABetaOrWithZeroRuns) {
  for (const bool zero : {false, true}) {
    Json config = {
        {"model_type", "ministral3"}, {"num_hidden_layers", 1}, {"hidden_size", 32}, {"intermediate_size", 32},
        {"num_attention_heads", 2},   {"head_dim", 16},         {"vocab_size", 24}};
    config["rope_parameters"] = {{"rope_type", "yarn"},
                                 {"factor", 4.0},
                                 {"original_max_position_embeddings", 16},
                                 {"mscale", 1.0},
                                 {"mscale_all_dim", 1.0}};
    if (zero) config["rope_parameters"]["llama_4_scaling_beta"] = 0;
    expect_numbers(read_hf_config(JsonRef(config, "config.json")));
  }
}

// Every size of a file that something is divided by: 0 is an error that names it, in both formats.
TEST_F(ConfigStep, SizesThatSomethingIsDividedByAreCheckedWhenAFileIsRead) {
  const Json moe = {{"model_type", "qwen3_moe"},
                    {"num_hidden_layers", 1},
                    {"hidden_size", 32},
                    {"intermediate_size", 32},
                    {"num_attention_heads", 2},
                    {"num_key_value_heads", 1},
                    {"head_dim", 16},
                    {"vocab_size", 24},
                    {"num_experts", 2},
                    {"num_experts_per_tok", 1},
                    {"moe_intermediate_size", 32},
                    {"max_position_embeddings", 64},
                    {"norm_topk_prob", true}};
  expect_numbers(read_hf_config(JsonRef(moe, "config.json")));
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "vocab_size", "num_experts", "num_experts_per_tok",
                          "moe_intermediate_size", "max_position_embeddings"}) {
    for (const std::int64_t wrong : {std::int64_t{0}, std::int64_t{-1}}) {
      Json config = moe;
      config[key] = wrong;
      EXPECT_THAT(error_message(ErrorKind::kFormat, [&] { read_hf_config(JsonRef(config, "config.json")); }),
                  testing::HasSubstr("config.json"))
          << key;
    }
  }
  for (const char* key : {"block_count", "context_length", "embedding_length", "attention.head_count",
                          "attention.head_count_kv", "attention.key_length", "expert_count", "expert_used_count",
                          "expert_feed_forward_length", "general.alignment"}) {
    test::GgufBuilder file = test::GgufBuilder::mixture();
    file.set(std::string(key).starts_with("general.") ? key : "qwen3moe." + std::string(key), 0u);
    if (key == std::string("attention.key_length"))
      for (const char* alike : {"qwen3moe.attention.value_length", "qwen3moe.rope.dimension_count"})
        file.set(alike, 0u);
    const std::string bytes = file.build();
    EXPECT_THAT(error_message(ErrorKind::kFormat,
                              [&] {
                                read_gguf_config(GgufFile::parse(std::as_bytes(std::span(bytes)), "made.gguf",
                                                                 GgufFile::Tensors::kRead));
                              }),
                testing::HasSubstr("made.gguf"))
        << key;
  }
}

}  // namespace
}  // namespace mneme
