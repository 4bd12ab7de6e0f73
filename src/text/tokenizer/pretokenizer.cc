#include "src/text/tokenizer/pretokenizer.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme {
namespace {

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// As Qwen 2's, but line breaks do not go with signs.
constexpr const char* kSeed =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The last of DeepSeek V3's three patterns, which Hunyuan has too.
constexpr const char* kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The pattern of o200k (GPT-4o, gpt-oss).
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt2NoLastSpace = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";

// Names as llama.cpp's converter writes them to `tokenizer.ggml.pre`; only those whose patterns are certain. The
// patterns of gpt-2, llama, qwen2, qwen35, tekken and gpt-4o are from the models' tokenizer.json.
const std::vector<PretokenizerPreset>& presets() {
  static const std::vector<PretokenizerPreset> table = {
      {{"gpt-2", "phi-2", "mpt", "olmo", "jina-es", "jina-de", "roberta-bpe"}, {kGpt2}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "glm4"}, {kLlama3}, true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {kLlama3}},
      {{"qwen2", "deepseek-r1-qwen", "stablelm2"}, {kQwen2}},
      {{"qwen35"}, {kQwen35}},
      {{"seed-coder"}, {kSeed}},
      {{"hunyuan-dense"}, {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepSeek3}},
      {{"tekken"}, {kTekken}, true},
      {{"gpt-4o"}, {kGpt4o}, true},
      {{"smollm", "starcoder", "refact", "command-r"}, {R"(\p{N})", kGpt2}},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2NoLastSpace, "[0-9][0-9][0-9]"}},
      {{"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2NoLastSpace, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
  };
  return table;
}

}  // namespace

Pretokenizer::Pretokenizer(const std::vector<std::string>& patterns) {
  levels_.reserve(patterns.size());
  for (const std::string& pattern : patterns) levels_.emplace_back(pattern);
}

Pretokenizer::Scratch::Scratch(const Pretokenizer& pretokenizer) {
  levels_.reserve(pretokenizer.levels_.size());
  for (const Regex& regex : pretokenizer.levels_) levels_.emplace_back(regex);
}

const PretokenizerPreset& Pretokenizer::preset(std::string_view name) {
  std::string known;
  for (const PretokenizerPreset& preset : presets()) {
    if (std::find(preset.names.begin(), preset.names.end(), name) != preset.names.end()) return preset;
    for (const std::string_view n : preset.names) known += (known.empty() ? "" : ", ") + std::string(n);
  }
  fail(ErrorKind::kUnsupported, "pre-tokenizer \"{}\" is not known; known are {}", name, known);
}

void Pretokenizer::split(std::string_view text, Scratch& scratch, FunctionRef<void(std::string_view)> on_piece) const {
  if (!text.empty()) split_level(0, text, scratch, on_piece);
}

void Pretokenizer::split_level(std::size_t level, std::string_view text, Scratch& scratch,
                               FunctionRef<void(std::string_view)> on_piece) const {
  if (level == levels_.size()) return on_piece(text);
  std::size_t done = 0;  // end of the pieces emitted so far
  auto cut = [&](std::size_t end) {
    if (end > done) split_level(level + 1, text.substr(done, end - done), scratch, on_piece);
    done = end;
  };
  std::size_t from = 0;
  while (from < text.size()) {
    const auto match = levels_[level].search(text, from, scratch.levels_[level]);
    if (!match) break;
    // Empty, or reversed by \K in a look-around (older PCRE2): no piece; continue after the next character.
    if (match->begin < from || match->end <= match->begin) {
      from = std::max(from, match->begin);
      if (from < text.size()) from += utf8_step(text.substr(from)).length;
      continue;
    }
    cut(match->begin);
    cut(match->end);
    from = done;
  }
  cut(text.size());
}

}  // namespace mneme
