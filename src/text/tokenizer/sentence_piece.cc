#include "src/text/tokenizer/sentence_piece.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // "▁", U+2581
constexpr char32_t kSpaceCode = 0x2581;

// Symbols without tokens: characters by code point, then single bytes that form no character.
Symbol symbol_of_character(char32_t code) {
  return -1 - static_cast<Symbol>(code);
}
Symbol symbol_of_byte(std::uint8_t byte) {
  return -1 - 0x110000 - Symbol{byte};
}

std::string without_marks(std::string_view token) {
  std::string out;
  for (std::size_t i = 0; i < token.size();) {
    const bool space = token.substr(i, kSpace.size()) == kSpace;
    out.push_back(space ? ' ' : token[i]);
    i += space ? kSpace.size() : 1;
  }
  return out;
}

// "<0x0A>" is 10.
std::optional<std::uint8_t> byte_of(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  std::uint8_t byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return byte;
}

// Length of the space, in either form, at the start of `text`; 0 if there is none.
std::size_t space_length(std::string_view text) {
  if (text.empty()) return 0;
  if (text[0] == ' ') return 1;
  return text.substr(0, kSpace.size()) == kSpace ? kSpace.size() : 0;
}

// End of the first word of `text`: its spaces, and what follows them up to the next space.
std::size_t word_end(std::string_view text) {
  std::size_t at = 0;
  while (const std::size_t n = space_length(text.substr(at))) at += n;
  while (at < text.size() && space_length(text.substr(at)) == 0) ++at;
  return at;
}

// End of the piece that Metaspace splits off: a space, if there is one at the start, and all up to the next.
std::size_t marked_end(std::string_view text) {
  std::size_t at = space_length(text);
  while (at < text.size() && space_length(text.substr(at)) == 0) ++at;
  return at;
}

bool has_space_inside(std::string_view token) {
  std::size_t at = 0;
  while (const std::size_t n = space_length(token.substr(at))) at += n;
  return token.find(kSpace, at) != std::string_view::npos || token.find(' ', at) != std::string_view::npos;
}

}  // namespace

struct SentencePiece::Call : Bpe::Call {
  using Bpe::Call::Call;
  std::size_t section_begin = 0;  // in the output
};

SentencePiece::SentencePiece(const TokenizerData& data) : Bpe(data), normal_(data_.tokens, data_.tokens.size()) {
  read_tokens();
  if (!data_.merges.empty()) {
    merges_from_list();
  } else {
    merges_from_scores();
  }
}

void SentencePiece::read_tokens() {
  byte_tokens_.fill(-1);
  bytes_.resize(data_.tokens.size());
  for (std::size_t i = 0; i < data_.tokens.size(); ++i) {
    const std::string& token = data_.tokens[i];
    const TokenId id = count32(i);
    bytes_[i] = without_marks(token);
    switch (data_.types[i]) {
      case TokenType::kNormal:
        normal_.add(id);
        break;
      case TokenType::kByte: {
        const auto byte = byte_of(token);
        if (!byte) fail(ErrorKind::kFormat, "tokenizer: byte token {} is \"{}\", expected <0xNN>", id, token);
        if (byte_tokens_[*byte] < 0) byte_tokens_[*byte] = id;
        bytes_[i].assign(1, *byte);
        break;
      }
      case TokenType::kUserDefined:
        add_added(llama_cpp() ? bytes_[i] : searched_text(id), id);
        // tokenizer.json's merges may make it, too.
        if (!llama_cpp()) normal_.add(id);
        break;
      case TokenType::kControl:
      case TokenType::kUnknown:
        bytes_[i] = token;
        add_added(searched_text(id), id);
        break;
      case TokenType::kAbsent:
        bytes_[i].clear();
        break;
      case TokenType::kUnused:
        break;
    }
  }
  for (std::size_t c = 0; c < ascii_symbols_.size(); ++c) {
    const char text = static_cast<char>(c);
    ascii_symbols_[c] = character_symbol({&text, 1}, static_cast<char32_t>(c));
  }
  space_symbol_ = character_symbol(kSpace, kSpaceCode);
}

// Normalizers change the text of tokens that are searched in normalised text, as they change the text itself.
std::string SentencePiece::searched_text(TokenId id) const {
  const std::string& token = data_.tokens[id];
  return (flags_[id] & kAddedNormalized) != 0 ? normalised(token, data_.space_rule == SpaceRule::kPrepend) : token;
}

std::string SentencePiece::normalised(std::string_view text, bool prepend) const {
  const bool marks = data_.space_rule == SpaceRule::kPrepend || data_.space_rule == SpaceRule::kReplace;
  std::string out(prepend && !text.empty() ? kSpace : std::string_view());
  for (const char c : text) marks&& c == ' ' ? out.append(kSpace) : out.append(1, c);
  return out;
}

std::optional<TokenId> SentencePiece::normal(std::string_view token) const {
  const TokenId id = normal_.find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

Symbol SentencePiece::character_symbol(std::string_view character, char32_t code_point) const {
  return normal(character).value_or(symbol_of_character(code_point));
}

void SentencePiece::add_merge(std::string_view left, std::string_view right, MergeTable::Merge merge) {
  auto symbol = [&](std::string_view part) -> std::optional<Symbol> {
    if (const auto id = normal(part)) return *id;
    const Utf8Step step = utf8_step(part);
    if (step.kind != Utf8Kind::kCharacter || step.length != part.size()) return std::nullopt;
    return symbol_of_character(step.code_point);
  };
  const auto l = symbol(left), r = symbol(right);
  if (l && r) merges_.add(*l, *r, merge);
}

void SentencePiece::merges_from_scores() {
  if (data_.scores.size() != data_.tokens.size()) {
    fail(ErrorKind::kFormat, "tokenizer: {} scores for {} tokens", data_.scores.size(), data_.tokens.size());
  }
  for (std::size_t i = 0; i < data_.scores.size(); ++i) {
    if (std::isnan(data_.scores[i])) fail(ErrorKind::kFormat, "tokenizer: the score of token {} is not a number", i);
  }
  std::vector<TokenId> by_score;
  for (std::size_t i = 0; i < data_.tokens.size(); ++i) {
    if (normal(data_.tokens[i]) == count32(i)) by_score.push_back(count32(i));
  }
  const auto score = [&](TokenId id) { return data_.scores[id]; };
  std::sort(by_score.begin(), by_score.end(), [&](TokenId a, TokenId b) { return score(a) > score(b); });

  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < by_score.size(); ++i) {
    const TokenId id = by_score[i];
    const std::string_view token = data_.tokens[id];
    if (i > 0 && score(id) < score(by_score[i - 1])) rank = static_cast<std::uint32_t>(i);
    words_apart_ = words_apart_ && !has_space_inside(token);
    for (std::size_t cut = 0; cut < token.size();) {
      const Utf8Step step = utf8_step(token.substr(cut));
      if (step.kind != Utf8Kind::kCharacter) break;
      cut += step.length;
      if (cut < token.size()) add_merge(token.substr(0, cut), token.substr(cut), {rank, id});
    }
  }
}

void SentencePiece::merges_from_list() {
  std::optional<TokenIndex> all;  // built on demand, rarely
  for (std::size_t rank = 0; rank < data_.merges.size(); ++rank) {
    const auto& [left, right] = data_.merges[rank];
    const std::string joined = left + right;
    for (const std::string& part : {left, right, joined}) {
      if (normal(part)) continue;
      if (!all) all = index_of_all(data_.tokens);
      if (all->find(part) >= 0) continue;
      fail(ErrorKind::kFormat, "tokenizer: merge {} (\"{}\" and \"{}\"): \"{}\" is not in the vocabulary", rank, left,
           right, part);
    }
    const auto id = normal(joined);
    if (!id || !normal(left) || !normal(right)) continue;
    words_apart_ = words_apart_ && !has_space_inside(joined);
    add_merge(left, right, {static_cast<std::uint32_t>(rank), *id});
  }
}

std::vector<TokenId> SentencePiece::encode(std::string_view text, const EncodeOptions& options) const {
  Call call(text.size());
  const SpaceRule rule = data_.space_rule;
  const bool normalises = rule == SpaceRule::kPrepend || rule == SpaceRule::kReplace;
  encode_sections(
      text, options, call.out,
      [&](const Section& s) -> std::string_view {
        if (!normalises) return s.text;
        return call.prefixed.emplace_back(normalised(s.text, rule == SpaceRule::kPrepend && !s.continues));
      },
      [&](const Section& s) { encode_section(s.text, inserts_space(s), call); });
  return std::move(call.out);
}

bool SentencePiece::inserts_space(const Section& section) const {
  if (section.continues) return false;
  const bool has_one = space_length(section.text) > 0;
  switch (data_.space_rule) {
    case SpaceRule::kLlamaCpp:
      return data_.add_space_prefix && section.after_control;
    case SpaceRule::kAlways:
      return !has_one;
    case SpaceRule::kFirst:
      return !has_one && section.at_start;
    default:
      return false;
  }
}

void SentencePiece::encode_section(std::string_view text, bool space_before, Call& call) const {
  call.section_begin = call.out.size();
  for (bool first = true; !text.empty(); first = false) {
    const bool splits = data_.split_at_marks;
    const std::string_view word = text.substr(0, splits         ? marked_end(text)
                                                 : words_apart_ ? word_end(text)
                                                                : text.size());
    const bool prefixed = first && space_before;
    if (splits) call.section_begin = call.out.size();  // an unknown token does not reach across
    encode_word(prefixed ? call.with_space(word) : word, call);
    text.remove_prefix(word.size());
  }
}

void SentencePiece::encode_word(std::string_view word, Call& call) const {
  call.cache.append(word, call.out, [&] { return append_word(word, call); });
}

bool SentencePiece::append_word(std::string_view word, Call& call) const {
  call.symbols.clear();
  while (!word.empty()) {
    const std::uint8_t byte = word[0];
    if (byte < 0x80) {
      call.symbols.push_back(byte == ' ' ? space_symbol_ : ascii_symbols_[byte]);
      word.remove_prefix(1);
      continue;
    }
    const Utf8Step step = utf8_step(word);
    if (step.kind == Utf8Kind::kCharacter) {
      call.symbols.push_back(character_symbol(word.substr(0, step.length), step.code_point));
    } else {
      for (std::size_t i = 0; i < step.length; ++i) {
        call.symbols.push_back(symbol_of_byte(word[i]));
      }
    }
    word.remove_prefix(step.length);
  }
  merges_.reduce(call.symbols);
  bool known = true;
  for (const Symbol symbol : call.symbols) {
    if (symbol >= 0) {
      call.out.push_back(symbol);
    } else {
      known = false;
      append_bytes_of(symbol, call);
    }
  }
  return known;
}

void SentencePiece::append_bytes_of(Symbol symbol, Call& call) const {
  std::string bytes;
  const Symbol code = -1 - symbol;
  if (code >= 0x110000) {
    bytes.push_back(static_cast<std::uint8_t>(code - 0x110000));
  } else if (static_cast<char32_t>(code) == kSpaceCode) {
    bytes = " ";  // a vocabulary without "▁"
  } else {
    append_utf8(bytes, code);
  }
  auto token = [&](char c) { return byte_tokens_[static_cast<std::uint8_t>(c)]; };
  if (std::all_of(bytes.begin(), bytes.end(), [&](char c) { return token(c) >= 0; })) {
    for (const char c : bytes) call.out.push_back(token(c));
    return;
  }
  if (!data_.unk) {
    fail(ErrorKind::kRequest, "the vocabulary has no tokens for the bytes of \"{}\" in the text, and no unknown token",
         bytes);
  }
  // A run of unknown characters is one unknown token, as in SentencePiece.
  const bool run = data_.fuse_unknown && call.out.size() > call.section_begin && call.out.back() == *data_.unk;
  if (!run) call.out.push_back(*data_.unk);
}

}  // namespace mneme
