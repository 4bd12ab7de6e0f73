// What the files of a Hugging Face folder mean: the model's configuration and its tokenizer.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "src/checkpoint/json.h"
#include "src/checkpoint/model_config.h"
#include "src/checkpoint/tokenizer_data.h"

namespace mneme {

inline constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxTokenizerBytes = std::size_t{256} << 20;

// Absent keys take the defaults of Hugging Face's configuration classes, where a wrong guess would not show in the
// weights' shapes.
//
// Errors  kFormat: missing or impossible values; kUnsupported: model type, RoPE scaling, quantised weights, ... (named)
ModelConfig read_hf_config(const JsonRef& config);

// tokenizer.json alone.
//
// Errors  kFormat: missing or contradicting; kUnsupported: kinds of model, normaliser, pre-tokenizer, post-processor
// (named)
TokenizerData read_tokenizer_json(const JsonRef& root);

// What the files beside tokenizer.json add; each may be null.
struct TokenizerSideFiles {
  const JsonRef* tokenizer_config = nullptr;   // tokenizer_config.json
  const JsonRef* generation_config = nullptr;  // generation_config.json
  const JsonRef* config = nullptr;             // config.json
  std::string_view chat_template;              // chat_template.jinja
};
void apply_side_files(const TokenizerSideFiles& files, TokenizerData& data);

// tokenizer.json and the files beside it.
TokenizerData read_hf_tokenizer(const std::filesystem::path& folder);

}  // namespace mneme
