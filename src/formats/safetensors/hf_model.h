// Reads a model's configuration and tokenizer from the files of a Hugging Face folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "src/formats/json.h"
#include "src/formats/model_config.h"
#include "src/formats/tokenizer_data.h"

namespace mneme {

inline constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxTokenizerBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxTemplates = 64;  // of chats, by name

// Absent keys take the defaults of Hugging Face's configuration classes, where a wrong value would not show in the
// shapes of the weights.
//
// Errors  kFormat: missing or invalid values; kUnsupported: model type, RoPE scaling, quantised weights, ... (named)
ModelConfig read_hf_config(const JsonRef& config);
// `text_config` of a model that reads pictures too; nothing for models of text.
std::optional<JsonRef> text_part(const JsonRef& config);

// Reads tokenizer.json only.
//
// Errors  kFormat: missing or inconsistent values; kUnsupported: kinds of model, normaliser, pre-tokenizer,
//         post-processor (named)
TokenizerData read_tokenizer_json(const JsonRef& root);

// Files that complete tokenizer.json; each may be null.
struct TokenizerSideFiles {
  const JsonRef* tokenizer_config = nullptr;   // tokenizer_config.json
  const JsonRef* generation_config = nullptr;  // generation_config.json
  const JsonRef* config = nullptr;             // config.json
  std::string_view chat_template;              // chat_template.jinja
  // additional_chat_templates/NAME.jinja: name and source, by name.
  std::vector<std::pair<std::string, std::string>> named_templates;
};
void apply_side_files(const TokenizerSideFiles& files, TokenizerData& data);

// Reads tokenizer.json and the files of TokenizerSideFiles.
TokenizerData read_hf_tokenizer(const std::filesystem::path& folder);

}  // namespace mneme
