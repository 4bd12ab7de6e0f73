#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/formats/gguf/gguf_model.h"
#include "src/formats/tokenizer_check.h"

namespace mneme {
namespace {

void read_types(const GgufFile& file, TokenizerData& t) {
  const auto types = file.integers("tokenizer.ggml.token_type");
  if (!types) {
    t.types.assign(t.tokens.size(), TokenType::kNormal);
    return;
  }
  if (types->size() != t.tokens.size())
    fail(ErrorKind::kFormat, "{}: 'tokenizer.ggml.token_type' has {} values for {} tokens", file.file(), types->size(),
         t.tokens.size());
  t.types.reserve(types->size());
  for (std::int64_t type : *types) {
    if (type < 0 || type > 6)
      fail(ErrorKind::kFormat, "{}: 'tokenizer.ggml.token_type' of token {}: expected 0 to 6, found {}", file.file(),
           t.types.size(), type);
    // 0 is "undefined", which older writers used for padding.
    t.types.push_back(type == 0 ? TokenType::kUnused : static_cast<TokenType>(type - 1));
    // llama.cpp's converter gives an id without a token this name; tokens that a model merely does not use have others.
    const std::size_t i = t.types.size() - 1;
    if (t.types[i] == TokenType::kUnused && t.tokens[i] == fmt::format("[PAD{}]", i)) t.types[i] = TokenType::kAbsent;
  }
}

void read_merges(const GgufFile& file, std::string_view key, TokenizerData& t) {
  const auto merges = file.strings(key);
  if (!merges) fail(ErrorKind::kFormat, "{}: metadata '{}' is missing", file.file(), key);
  t.merges.reserve(merges->size());
  for (std::string_view m : *merges) {
    // A part may start with a space where the vocabulary is not in the printable alphabet; it is never empty.
    const std::size_t space = m.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == m.size())
      fail(ErrorKind::kFormat, "{}: merge {} of '{}': expected two parts and a space between, found '{}'", file.file(),
           t.merges.size(), key, m);
    t.merges.emplace_back(m.substr(0, space), m.substr(space + 1));
  }
}

void read_scores(const GgufFile& file, TokenizerData& t) {
  auto scores = file.floats("tokenizer.ggml.scores");
  if (!scores) fail(ErrorKind::kFormat, "{}: metadata 'tokenizer.ggml.scores' is missing", file.file());
  if (scores->size() != t.tokens.size())
    fail(ErrorKind::kFormat, "{}: 'tokenizer.ggml.scores' has {} values for {} tokens", file.file(), scores->size(),
         t.tokens.size());
  for (std::size_t i = 0; i < scores->size(); ++i)
    if (std::isnan((*scores)[i]))
      fail(ErrorKind::kFormat, "{}: 'tokenizer.ggml.scores' of token {} is not a number", file.file(), i);
  t.scores = std::move(*scores);
}

// Reads the space rules that `mneme convert` writes for a tokenizer.json.
void read_space_rules(const GgufFile& file, TokenizerData& t) {
  const auto name = file.string("mneme.tokenizer.space_rule");
  if (!name) return;
  const auto rule = space_rule_of(*name);
  if (!rule)
    fail(ErrorKind::kUnsupported,
         "{}: 'mneme.tokenizer.space_rule': expected always, first, never, prepend or replace, found '{}'", file.file(),
         name->substr(0, 40));
  t.space_rule = *rule;
  t.split_at_marks = file.boolean("mneme.tokenizer.split_at_marks").value_or(false);
  t.fuse_unknown = file.boolean("mneme.tokenizer.fuse_unknown").value_or(true);
  if (file.strings("mneme.tokenizer.merges")) read_merges(file, "mneme.tokenizer.merges", t);
}

void read_added_flags(const GgufFile& file, TokenizerData& t) {
  const auto pairs = file.integers("mneme.tokenizer.added_flags");
  if (!pairs) return;
  constexpr std::uint8_t kAll = kAddedLstrip | kAddedRstrip | kAddedNormalized;
  if (pairs->size() % 2 != 0 || pairs->size() > 2 * t.tokens.size())
    fail(ErrorKind::kFormat, "{}: 'mneme.tokenizer.added_flags': expected pairs of an id and flags, found {} values",
         file.file(), pairs->size());
  for (std::size_t i = 0; i < pairs->size(); i += 2) {
    const std::int32_t id = *check_token_id((*pairs)[i], t, "'mneme.tokenizer.added_flags'", file.file());
    const std::int64_t flags = (*pairs)[i + 1];
    if (flags < 0 || flags > kAll)
      fail(ErrorKind::kFormat, "{}: 'mneme.tokenizer.added_flags' of token {}: expected 0 to {}, found {}", file.file(),
           id, kAll, flags);
    t.added_flags.push_back({id, static_cast<std::uint8_t>(flags)});
  }
}

// Files name one end-of-sequence token; chat models end their turns with others too, recognised by their text.
void find_ends(TokenizerData& t) {
  static constexpr std::array<std::string_view, 11> kEnds = {
      "<|eot_id|>",    "<|im_end|>",      "<|end|>",         "<|eom_id|>",
      "<|endoftext|>", "<|end_of_text|>", "<|end_of_turn|>", "<｜end▁of▁sentence｜>",
      "<|return|>",    "<|call|>",        "<end_of_turn>"};
  const bool harmony = ends_by_return(t.tokens);
  for (std::size_t id = 0; id < t.tokens.size(); ++id) {
    if (t.types[id] != TokenType::kControl) continue;
    if (std::find(kEnds.begin(), kEnds.end(), t.tokens[id]) == kEnds.end()) continue;
    if (harmony && t.tokens[id] == "<|end|>") continue;
    const std::int32_t i = count32(id);
    if (t.eos != i && t.eot != i) t.eog.push_back(i);
  }
}

void read_special(const GgufFile& file, TokenizerData& t) {
  const auto id = [&](std::string_view key, std::optional<std::int64_t> otherwise = std::nullopt) {
    const auto given = file.integer(key);
    // Some writers store "none" as -1 in 32 bits.
    if (given && (*given == -1 || *given == std::numeric_limits<std::uint32_t>::max()))
      return std::optional<std::int32_t>();
    return check_token_id(given ? given : otherwise, t, fmt::format("'{}'", key), file.file());
  };
  const bool sentencepiece = t.kind == TokenizerKind::kSentencePiece;
  const auto usual = [&](std::int64_t token) {  // SentencePiece's usual first three tokens
    return sentencepiece && t.tokens.size() > 2 ? std::optional<std::int64_t>(token) : std::nullopt;
  };
  t.bos = id("tokenizer.ggml.bos_token_id", usual(1));
  t.eos = id("tokenizer.ggml.eos_token_id", usual(2));
  t.eot = id("tokenizer.ggml.eot_token_id");
  t.unk = id("tokenizer.ggml.unknown_token_id", usual(0));
  t.pad = id("tokenizer.ggml.padding_token_id");
  if (const auto eom = id("tokenizer.ggml.eom_token_id"); eom && eom != t.eos && eom != t.eot) t.eog.push_back(*eom);
  if (const auto ends = file.integers("mneme.tokenizer.eog_token_ids")) {
    for (const std::int64_t end : *ends)
      t.eog.push_back(*check_token_id(end, t, "'mneme.tokenizer.eog_token_ids'", file.file()));
  } else {
    find_ends(t);
  }
  // Models of these pre-tokenizers expect a BOS token and keep whole pieces; their files do not say so.
  static constexpr std::array<std::string_view, 5> kLlama3 = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"};
  const bool llama3 = std::find(kLlama3.begin(), kLlama3.end(), t.pre) != kLlama3.end();
  t.ignore_merges = file.boolean("mneme.tokenizer.ignore_merges").value_or(llama3 || t.pre == "gpt-4o");
  t.add_bos = file.boolean("tokenizer.ggml.add_bos_token").value_or(sentencepiece || llama3);
  t.add_eos = file.boolean("tokenizer.ggml.add_eos_token").value_or(false);
  const auto prefix = file.boolean("tokenizer.ggml.add_space_prefix");
  t.add_space_prefix = prefix.value_or(true);
  t.pre_add_prefix_space = !sentencepiece && prefix.value_or(false);
}

// tokenizer.chat_template, and tokenizer.chat_template.NAME for further ones.
void read_templates(const GgufFile& file, TokenizerData& t) {
  constexpr std::string_view kNamed = "tokenizer.chat_template.";
  t.chat_template = std::string(file.string("tokenizer.chat_template").value_or(""));
  std::map<std::string, std::string> named;
  for (const GgufEntry& e : file.entries()) {
    if (!e.key.starts_with(kNamed)) continue;
    const std::string name(e.key.substr(kNamed.size()));
    const std::string source(*file.string(e.key));
    if (name != "default") {
      named[name] = source;
    } else if (t.chat_template.empty()) {
      t.chat_template = source;
    }
  }
  t.named_templates.assign(named.begin(), named.end());
}

}  // namespace

TokenizerData read_gguf_tokenizer(const GgufFile& file) {
  TokenizerData t;
  const auto model = file.string("tokenizer.ggml.model");
  if (!model)
    fail(ErrorKind::kFormat, "{}: metadata 'tokenizer.ggml.model' is missing: the file has no tokenizer", file.file());
  if (*model == "gpt2")
    t.kind = TokenizerKind::kByteBpe;
  else if (*model == "llama")
    t.kind = TokenizerKind::kSentencePiece;
  else
    fail(ErrorKind::kUnsupported,
         "{}: tokenizer '{}'; this build knows gpt2 (byte-level BPE) and llama (SentencePiece BPE)", file.file(),
         *model);
  const auto tokens = file.strings("tokenizer.ggml.tokens");
  if (!tokens || tokens->empty())
    fail(ErrorKind::kFormat, "{}: metadata 'tokenizer.ggml.tokens' is missing or empty", file.file());
  if (tokens->size() > (1u << 24))
    fail(ErrorKind::kFormat, "{}: 'tokenizer.ggml.tokens': expected at most 2^24 tokens, found {}", file.file(),
         tokens->size());
  t.tokens.assign(tokens->begin(), tokens->end());
  read_types(file, t);
  if (t.kind == TokenizerKind::kByteBpe) {
    if (const auto patterns = file.strings("mneme.tokenizer.pre_patterns"))
      t.pre_patterns.assign(patterns->begin(), patterns->end());
    else
      t.pre = std::string(file.string("tokenizer.ggml.pre").value_or("default"));
    read_merges(file, "tokenizer.ggml.merges", t);
  } else {
    read_scores(file, t);
    read_space_rules(file, t);
  }
  read_added_flags(file, t);
  read_special(file, t);
  read_templates(file, t);
  return t;
}

}  // namespace mneme
