#include "src/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/text/tokenizer/byte_bpe.h"
#include "src/text/tokenizer/sentence_piece.h"

namespace mneme {
namespace {

// Tokens that frame turns in the known families. Converters sometimes store them as ordinary tokens; text must not
// become them.
constexpr std::array<std::string_view, 17> kTurnMarkers = {"<|begin_of_text|>",
                                                           "<|start_header_id|>",
                                                           "<|end_header_id|>",
                                                           "<|im_start|>",
                                                           "<|bos|>",
                                                           "<|user|>",
                                                           "<|assistant|>",
                                                           "<|system|>",
                                                           "<｜begin▁of▁sentence｜>",
                                                           "<｜User｜>",
                                                           "<｜Assistant｜>",
                                                           "[INST]",
                                                           "[/INST]",
                                                           "<start_of_turn>",
                                                           "<s>",
                                                           "</s>",
                                                           "<|eom_id|>"};

// Tokens that always end a generation: a file names one end token, the model may use another.
constexpr std::array<std::string_view, 17> kEndMarkers = {
    "<|eot_id|>",     "<|eom_id|>",    "<|end_of_text|>",       "<|im_end|>",      "<|endoftext|>",
    "<|end|>",        "<end_of_turn>", "<｜end▁of▁sentence｜>", "<EOT>",           "<|return|>",
    "<|call|>",       "<turn|>",       "<|tool_response>",      "<|observation|>", "<|calls|>",
    "<|end_of_msg|>", "[e~["};

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, const std::string& token) {
  return std::find(names.begin(), names.end(), token) != names.end();
}

void check_id(const char* what, std::optional<std::int32_t> id, std::size_t vocab) {
  if (id && (*id < 0 || std::cmp_greater_equal(*id, vocab))) {
    fail(ErrorKind::kFormat, "tokenizer: {} token is {}, but the vocabulary has {} tokens", what, *id, vocab);
  }
}

void check_data(const TokenizerData& data) {
  const std::size_t vocab = data.tokens.size();
  if (vocab == 0) fail(ErrorKind::kFormat, "tokenizer: the vocabulary is empty");
  if (vocab >= (std::size_t{1} << 31)) fail(ErrorKind::kFormat, "tokenizer: a vocabulary of {} tokens", vocab);
  if (!data.types.empty() && data.types.size() != vocab) {
    fail(ErrorKind::kFormat, "tokenizer: {} token types for {} tokens", data.types.size(), vocab);
  }
  check_id("beginning-of-sequence", data.bos, vocab);
  check_id("end-of-sequence", data.eos, vocab);
  check_id("end-of-turn", data.eot, vocab);
  check_id("unknown", data.unk, vocab);
  check_id("padding", data.pad, vocab);
  for (const std::int32_t id : data.eog) check_id("end-of-generation", id, vocab);
  for (const AddedFlags& a : data.added_flags) check_id("added", a.id, vocab);
}

}  // namespace

Tokenizer::Tokenizer(const TokenizerData& data) : data_(data), end_(data.tokens.size()), flags_(data.tokens.size()) {
  check_data(data_);
  for (const AddedFlags& a : data_.added_flags) flags_[a.id] = a.flags;
  data_.types.resize(data_.tokens.size(), TokenType::kNormal);
  auto mark_end = [&](std::optional<std::int32_t> id) {
    if (id && is_token(*id)) end_[*id] = true;  // an id without a token is never sampled
  };
  mark_end(data_.eos);
  mark_end(data_.eot);
  for (const std::int32_t id : data_.eog) mark_end(id);
  const bool harmony = ends_by_return(data_.tokens);
  for (std::size_t i = 0; i < data_.tokens.size(); ++i) {
    const std::string& token = data_.tokens[i];
    if (token.size() < 3 || (token[0] != '<' && token[0] != '[')) continue;
    const bool goes_on = harmony && token == "<|end|>";
    const bool marker = is_one_of(kTurnMarkers, token) || goes_on, end = is_one_of(kEndMarkers, token) && !goes_on;
    if (end) end_[i] = true;
    if (marker || end) data_.types[i] = TokenType::kControl;
    // Some files use the end-of-text token as the unknown token; a character without a token must not end a turn.
    if ((marker || end) && data_.unk == count32(i)) data_.unk.reset();
  }
  if (data_.unk && (is_end(*data_.unk) || data_.unk == data_.bos)) data_.unk.reset();
}

std::unique_ptr<Tokenizer> Tokenizer::make(const TokenizerData& data) {
  if (data.kind == TokenizerKind::kSentencePiece) return std::make_unique<SentencePiece>(data);
  return std::make_unique<ByteBpe>(data);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool show_special) const {
  std::string out;
  bool at_start = true;
  for (const TokenId id : ids) append_token_text(*this, id, show_special, at_start, out);
  return out;
}

bool Tokenizer::is_end(TokenId id) const {
  return contains(id) && end_[id];
}

std::vector<TokenId> Tokenizer::end_tokens() const {
  std::vector<TokenId> out;
  for (TokenId id = 0; id < vocab_size(); ++id)
    if (is_end(id)) out.push_back(id);
  return out;
}

bool Tokenizer::is_control(TokenId id) const {
  return contains(id) && data_.types[id] == TokenType::kControl;
}

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  const auto it = std::find(data_.tokens.begin(), data_.tokens.end(), token);
  if (it == data_.tokens.end() || !is_token(count32(it - data_.tokens.begin()))) return std::nullopt;
  return count32(it - data_.tokens.begin());
}

void append_token_text(const Tokenizer& tokenizer, TokenId id, bool show_special, bool& at_start, std::string& out) {
  const std::string bytes = tokenizer.token_bytes(id, show_special);
  const TokenizerData& data = tokenizer.data();
  const bool strip = at_start && data.kind == TokenizerKind::kSentencePiece && data.add_space_prefix;
  if (bytes.empty() || tokenizer.is_control(id)) {
    out += bytes;
    return;
  }
  at_start = false;
  out.append(bytes, strip && bytes[0] == ' ' ? 1 : 0);
}

}  // namespace mneme
