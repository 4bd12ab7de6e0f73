// Golden files written by tools/make_golden.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace mneme {

// Errors of plain arithmetic; tolerances are twice these.
struct ErrorLevel {
  double max = 0.0, rms = 0.0;
};

struct GoldenCase {
  std::filesystem::path folder;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> rows;  // positions whose logits are stored
  std::int64_t n_decode = 0;       // the last n_decode rows are all stored
  std::int64_t context = 0;
  std::map<std::string, ErrorLevel> plain, sharp;  // by KV cache dtype; sharp: f32 and f16 weights only
  std::map<std::string, ErrorLevel> rounded;  // plain with experts' activations in bf16; empty: no expert is quantised

  // File of f32 logits, [rows, vocab].
  std::vector<float> logits(const std::string& file) const;
};

inline const std::vector<std::string>& golden_names() {
  static const std::vector<std::string> names = {
      "llama-f32",     "llama-llama3", "llama-linear", "llama-dynamic", "mistral",    "mistral-window",
      "qwen2",         "qwen3",        "qwen3-yarn",   "mistral3",      "qwen3moe",   "gpt-oss",
      "granite",       "qwen3-vl",     "qwen3-vl-moe", "qwen2-5-vl",    "smollm3",    "seed-oss",
      "olmo2",         "olmo3",        "phi3",         "phi3-short",    "glm4",       "ernie4-5",
      "hunyuan-dense", "gemma3",       "qwen3-5",      "qwen3-5-moe",   "qwen3-next",
  };
  return names;
}

GoldenCase read_golden(const std::string& name);

}  // namespace mneme
