#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/formats/safetensors/hf_pre_tokenizer.h"
#include "src/formats/tokenizer_check.h"

namespace mneme {
namespace {

constexpr std::int64_t kMaxTokens = 1 << 24;
constexpr std::size_t kMaxEnds = 1024;

// Holes between ids become ids without a token, but a single id must not create millions of them.
void put_token(TokenizerData& t, std::vector<bool>& taken, std::int64_t id, const std::string& text, TokenType type,
               std::size_t n_entries, std::string_view file) {
  const auto most = std::min<std::int64_t>(kMaxTokens, 2 * n_entries + 1024);
  if (id < 0 || id >= most)
    fail(ErrorKind::kFormat, "{}: token '{}': expected an id from 0 to {}, found {}", file, text.substr(0, 40),
         most - 1, id);
  const std::size_t i = id;
  if (i >= t.tokens.size()) {
    t.tokens.resize(i + 1);
    t.types.resize(i + 1, TokenType::kAbsent);
    taken.resize(i + 1, false);
  }
  if (taken[i] && t.tokens[i] != text)
    fail(ErrorKind::kFormat, "{}: tokens '{}' and '{}' share the id {}", file, t.tokens[i], text, id);
  taken[i] = true;
  t.tokens[i] = text;
  t.types[i] = type;
}

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.back() == '>' &&
         text.find_first_not_of("0123456789ABCDEF", 3) == 5;
}

// Flags of one added token. single_word is refused: no known model of these kinds uses it.
void read_added_flags(const JsonRef& token, std::int64_t id, bool special, TokenizerData& t) {
  if (token.boolean("single_word", false))
    fail(ErrorKind::kUnsupported, "{}: {}: added token '{}' has single_word; this build takes such tokens nowhere",
         token.file(), token.path(), token.at("content").string());
  std::uint8_t flags = 0;
  if (token.boolean("lstrip", false)) flags |= kAddedLstrip;
  if (token.boolean("rstrip", false)) flags |= kAddedRstrip;
  if (token.boolean("normalized", !special)) flags |= kAddedNormalized;
  std::erase_if(t.added_flags, [&](const AddedFlags& a) { return a.id == id; });
  if (flags != 0) t.added_flags.push_back({count32(id), flags});
}

void read_vocabulary(const JsonRef& root, const JsonRef& model, TokenizerData& t) {
  const JsonRef vocab = model.at("vocab");
  if (!vocab.is_object()) vocab.wrong("an object");
  const auto added = root.find("added_tokens");
  const std::vector<JsonRef> added_tokens = added ? added->elements() : std::vector<JsonRef>();
  const std::size_t n_entries = vocab.value().size() + added_tokens.size();
  if (vocab.value().empty()) vocab.wrong("at least one token");
  std::vector<bool> taken;
  for (const auto& [text, id] : vocab.value().items()) {
    if (!id.is_number_integer()) vocab.at(text).integer();
    const bool byte = t.kind == TokenizerKind::kSentencePiece && is_byte_token(text);
    put_token(t, taken, JsonRef(id, root.file()).integer(), text, byte ? TokenType::kByte : TokenType::kNormal,
              n_entries, root.file());
  }
  const auto unk = model.find("unk_token");
  for (const JsonRef& token : added_tokens) {
    const std::string& text = token.at("content").string();
    if (text.empty()) token.wrong("content that is not empty");
    const auto same = vocab.value().find(text);
    const std::int64_t id = token.at("id").integer();
    if (same != vocab.value().end() && JsonRef(*same, root.file()).integer() != id)
      fail(ErrorKind::kFormat, "{}: added token '{}' has id {}, the vocabulary gives it {}", root.file(), text, id,
           same->dump());
    const bool special = token.boolean("special", false);
    put_token(t, taken, id, text, special ? TokenType::kControl : TokenType::kUserDefined, n_entries, root.file());
    read_added_flags(token, id, special, t);
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (!taken[i]) t.tokens[i] = fmt::format("[PAD{}]", i);
    if (unk && t.tokens[i] == unk->string()) {
      t.unk = count32(i);
      if (t.kind == TokenizerKind::kSentencePiece) t.types[i] = TokenType::kUnknown;
    }
  }
}

void read_merges(const JsonRef& model, TokenizerData& t) {
  const JsonRef merges = model.at("merges");
  if (!merges.is_array()) merges.wrong("an array");
  for (const Json& value : merges.value()) {
    const auto bad = [&] {
      fail(ErrorKind::kFormat, "{}: model.merges[{}]: expected \"left right\" or [\"left\", \"right\"]", model.file(),
           t.merges.size());
    };
    if (value.is_string()) {
      const auto& m = value.get_ref<const std::string&>();
      const std::size_t space = m.find(' ');
      if (space == 0 || space == std::string::npos || space + 1 == m.size() ||
          m.find(' ', space + 1) != std::string::npos)
        bad();
      t.merges.emplace_back(m.substr(0, space), m.substr(space + 1));
    } else {
      if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_string()) bad();
      t.merges.emplace_back(value[0].get<std::string>(), value[1].get<std::string>());
    }
  }
}

// Scores for programs that know no merges (llama.cpp): the pair whose union has the best score merges, and the order of
// the list reproduces them. Ours merges by the list: scores also join pairs that are not in it. A token that no merge
// produces must not be produced by scores either and becomes unused.
void scores_from_merges(TokenizerData& t) {
  std::unordered_map<std::string, std::size_t> rank;
  for (std::size_t r = 0; r < t.merges.size(); ++r) rank.emplace(t.merges[r].first + t.merges[r].second, r);
  t.scores.assign(t.tokens.size(), 0.0f);
  for (std::size_t id = 0; id < t.tokens.size(); ++id) {
    if (t.types[id] != TokenType::kNormal) continue;
    const std::string& text = t.tokens[id];
    const auto it = rank.find(text);
    const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0u) != 0x80u; });
    if (it != rank.end())
      t.scores[id] = -static_cast<float>(it->second);
    else if (characters > 1)
      t.types[id] = TokenType::kUnused;
    else
      t.scores[id] = -static_cast<float>(t.merges.size() + id);
  }
}

std::optional<std::int32_t> id_of(const TokenizerData& t, std::string_view text) {
  const auto it = std::find(t.tokens.begin(), t.tokens.end(), text);
  return it == t.tokens.end() ? std::nullopt : std::optional(count32(it - t.tokens.begin()));
}

// A token of tokenizer_config.json: its text, or an object with the text in `content`.
std::optional<std::int32_t> named_token(const JsonRef& config, std::string_view key, const TokenizerData& t) {
  const auto v = config.find(key);
  if (!v) return std::nullopt;
  const std::string& text = v->is_object() ? v->at("content").string() : v->string();
  const auto id = id_of(t, text);
  if (!id) fail(ErrorKind::kFormat, "{}: {} '{}' is not in the vocabulary", config.file(), key, text);
  return id;
}

// Ids of eos_token_id: a number or a list.
std::vector<std::int32_t> listed_ids(const JsonRef* config, std::string_view key, const TokenizerData& t) {
  std::vector<std::int32_t> ids;
  const auto v = config != nullptr ? config->find(key) : std::nullopt;
  if (!v) return ids;
  const auto what = fmt::format("'{}'", key);
  if (!v->is_array()) return {*check_token_id(v->integer(), t, what, config->file())};
  if (v->value().size() > kMaxEnds) v->wrong(fmt::format("at most {} ids", kMaxEnds));
  for (const JsonRef& id : v->elements()) ids.push_back(*check_token_id(id.integer(), t, what, config->file()));
  return ids;
}

// One template, or a list of them by name.
void read_templates(const JsonRef& tokenizer_config, TokenizerData& t) {
  if (const auto answers = tokenizer_config.find("response_template")) t.response_template = answers->value().dump();
  const auto v = tokenizer_config.find("chat_template");
  if (!v) return;
  if (!v->is_array()) {
    t.chat_template = v->string();
    return;
  }
  if (v->value().size() > kMaxTemplates) v->wrong(fmt::format("at most {} templates", kMaxTemplates));
  std::map<std::string, std::string> named;
  for (const JsonRef& one : v->elements()) named[one.at("name").string()] = one.at("template").string();
  if (const auto found = named.extract("default")) t.chat_template = found.mapped();
  t.named_templates.assign(named.begin(), named.end());
}

}  // namespace

TokenizerData read_tokenizer_json(const JsonRef& root) {
  TokenizerData t;
  const JsonRef model = root.at("model");
  // Files of 2020 omit the type; they all are BPE with merges or word lists.
  const std::string type = model.string("type", model.find("merges") ? "BPE" : "unnamed");
  if (type != "BPE") fail(ErrorKind::kUnsupported, "{}: tokenizer model '{}'; this build knows BPE", root.file(), type);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const std::string text = model.string(key, ""); !text.empty())
      fail(ErrorKind::kUnsupported, "{}: model.{} '{}'", root.file(), key, text);
  if (model.number("dropout", 0.0) != 0.0) fail(ErrorKind::kUnsupported, "{}: model.dropout is not 0", root.file());
  read_pre_tokenizer(root, model.boolean("byte_fallback", false), t);
  t.ignore_merges = model.boolean("ignore_merges", false);
  t.fuse_unknown = model.boolean("fuse_unk", false);
  if (t.ignore_merges && t.kind == TokenizerKind::kSentencePiece)
    fail(ErrorKind::kUnsupported, "{}: model.ignore_merges with byte_fallback; expected one of them", root.file());
  read_vocabulary(root, model, t);
  read_merges(model, t);
  if (t.kind == TokenizerKind::kSentencePiece) scores_from_merges(t);
  read_post_processor(root, t);
  return t;
}

void apply_side_files(const TokenizerSideFiles& files, TokenizerData& t) {
  const auto first = [&](const char* key) -> std::optional<std::int32_t> {
    for (const JsonRef* config : {files.generation_config, files.config})
      if (const auto ids = listed_ids(config, key, t); !ids.empty()) return ids.front();
    return std::nullopt;
  };
  if (files.tokenizer_config != nullptr) {
    const JsonRef& c = *files.tokenizer_config;
    if (const auto bos = named_token(c, "bos_token", t)) t.bos = bos;
    t.eos = named_token(c, "eos_token", t);
    t.pad = named_token(c, "pad_token", t);
    if (const auto unk = named_token(c, "unk_token", t); unk && !t.unk) t.unk = unk;
    t.add_bos = c.boolean("add_bos_token", t.add_bos);
    t.add_eos = c.boolean("add_eos_token", t.add_eos);
    read_templates(c, t);
  }
  // As in transformers, files replace whatever tokenizer_config.json has.
  if (!files.chat_template.empty() || !files.named_templates.empty()) {
    t.chat_template = std::string(files.chat_template);
    t.named_templates = files.named_templates;
  }
  if (!t.bos) t.bos = first("bos_token_id");
  if (!t.eos) t.eos = first("eos_token_id");
  if (!t.pad) t.pad = first("pad_token_id");
  // generation_config.json overrides config.json, which models rarely keep up to date.
  auto ends = listed_ids(files.generation_config, "eos_token_id", t);
  if (ends.empty()) ends = listed_ids(files.config, "eos_token_id", t);
  for (const std::int32_t id : ends)
    if (t.eos != id && std::find(t.eog.begin(), t.eog.end(), id) == t.eog.end()) t.eog.push_back(id);
  if (t.add_bos && !t.bos) t.add_bos = false;
  if (t.add_eos && !t.eos) t.add_eos = false;
}

}  // namespace mneme
