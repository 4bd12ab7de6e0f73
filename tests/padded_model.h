// A model whose embedding has more rows than its tokenizer has tokens.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace mneme {

// Ids below it have a token, those up to kPaddedVocab have none.
inline constexpr std::int32_t kPaddedTokens = 60, kPaddedVocab = 64;

// A copy of the smallest golden model in `folder`, without the last tokens of its tokenizer.json.
inline std::filesystem::path make_padded_model(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const fs::path from = MNEME_SOURCE_DIR "/tests/golden/data/llama-f32";
  for (const char* name : {"config.json", "model.safetensors"}) fs::copy_file(from / name, folder / name);
  std::ifstream in(from / "tokenizer.json");
  nlohmann::json json = nlohmann::json::parse(in);
  nlohmann::json& vocab = json["model"]["vocab"];
  for (auto it = vocab.begin(); it != vocab.end();) it = *it >= kPaddedTokens ? vocab.erase(it) : std::next(it);
  EXPECT_EQ(vocab.size(), static_cast<std::size_t>(kPaddedTokens));
  std::ofstream(folder / "tokenizer.json") << json;
  return folder;
}

}  // namespace mneme
