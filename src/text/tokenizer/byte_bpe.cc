#include "src/text/tokenizer/byte_bpe.h"

#include <utility>

#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/text/unicode/byte_chars.h"
#include "src/text/unicode/utf8.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme {
namespace {

std::vector<std::string> patterns_of(const TokenizerData& data) {
  return data.pre.empty() ? data.pre_patterns : Pretokenizer::preset(data.pre).patterns;
}

// The symbol of a byte without a token.
Symbol no_token(std::uint8_t byte) {
  return -1 - Symbol{byte};
}

}  // namespace

struct ByteBpe::Call : Bpe::Call {
  Call(const Pretokenizer& pretokenizer, std::size_t text_bytes) : Bpe::Call(text_bytes), scratch(pretokenizer) {}
  Pretokenizer::Scratch scratch;
};

ByteBpe::ByteBpe(const TokenizerData& data) : Bpe(data), whole_(bytes_, 0), pretokenizer_(patterns_of(data)) {
  if (!data_.pre.empty()) data_.ignore_merges = data_.ignore_merges || Pretokenizer::preset(data_.pre).ignore_merges;
  read_tokens();
}

void ByteBpe::read_tokens() {
  TokenIndex normal(data_.tokens, data_.tokens.size());
  if (data_.ignore_merges) whole_ = TokenIndex(bytes_, data_.tokens.size());
  bytes_.resize(data_.tokens.size());
  for (std::uint32_t b = 0; b < 256; ++b) byte_symbols_[b] = no_token(static_cast<std::uint8_t>(b));
  for (std::size_t i = 0; i < data_.tokens.size(); ++i) {
    const std::string& token = data_.tokens[i];
    const TokenId id = count32(i);
    const TokenType type = data_.types[i];
    std::optional<std::string> bytes;
    if (type == TokenType::kNormal || type == TokenType::kUnused) bytes = from_byte_chars(token);
    const bool normal_text = bytes && type == TokenType::kNormal;
    if (normal_text) normal.add(id);
    bytes_[i] = bytes ? *bytes : token;
    if (normal_text && data_.ignore_merges) whole_.add(id);
    if (normal_text && bytes_[i].size() == 1) {
      Symbol& symbol = byte_symbols_[byte_of(bytes_[i][0])];
      if (symbol < 0) symbol = id;
    }
    if (type == TokenType::kUserDefined || type == TokenType::kControl || type == TokenType::kUnknown)
      add_added(token, id);
    if (type == TokenType::kAbsent) bytes_[i].clear();
  }
  read_merges(normal);
}

void ByteBpe::read_merges(const TokenIndex& normal) {
  merges_ = MergeTable(data_.merges.size());
  std::string joined;
  std::optional<TokenIndex> all;  // built on demand, rarely
  // A control or user-defined token makes no merge: text must never become the former, and the latter is recognised
  // before merging.
  auto lookup = [&](const std::string& token, std::size_t rank, const char* part) -> std::optional<TokenId> {
    if (const TokenId id = normal.find(token); id >= 0) return id;
    if (!all) all = index_of_all(data_.tokens);
    if (all->find(token) >= 0) return std::nullopt;
    fail(ErrorKind::kFormat, "tokenizer: merge {} (\"{}\" and \"{}\"): {} \"{}\" is not in the vocabulary", rank,
         data_.merges[rank].first, data_.merges[rank].second, part, token);
  };
  for (std::size_t rank = 0; rank < data_.merges.size(); ++rank) {
    const auto& [left, right] = data_.merges[rank];
    joined.assign(left).append(right);
    const auto l = lookup(left, rank, "the left part"), r = lookup(right, rank, "the right part");
    const auto both = lookup(joined, rank, "the result");
    if (l && r && both) merges_.add(*l, *r, {static_cast<std::uint32_t>(rank), *both});
  }
}

std::vector<TokenId> ByteBpe::encode(std::string_view text, const EncodeOptions& options) const {
  Call call(pretokenizer_, text.size());
  encode_sections(
      text, options, call.out, [](const Section& section) { return section.text; },
      [&](const Section& section) {
        const bool prefixed = data_.pre_add_prefix_space && !section.continues && section.text[0] != ' ';
        encode_section(prefixed ? call.with_space(section.text) : section.text, call);
      });
  return std::move(call.out);
}

void ByteBpe::encode_section(std::string_view text, Call& call) const {
  auto on_piece = [&](std::string_view piece) { encode_piece(piece, call); };
  while (!text.empty()) {
    const std::size_t valid = std::min(find_invalid_utf8(text), text.size());
    pretokenizer_.split(text.substr(0, valid), call.scratch, on_piece);
    text.remove_prefix(valid);
    std::size_t invalid = 0;
    while (invalid < text.size()) {
      const Utf8Step step = utf8_step(text.substr(invalid));
      if (step.kind == Utf8Kind::kCharacter) break;
      invalid += step.length;
    }
    if (invalid > 0) encode_piece(text.substr(0, invalid), call);
    text.remove_prefix(invalid);
  }
}

void ByteBpe::encode_piece(std::string_view piece, Call& call) const {
  call.cache.append(piece, call.out, [&] { return append_piece(piece, call); });
}

bool ByteBpe::append_piece(std::string_view piece, Call& call) const {
  if (data_.ignore_merges) {
    if (const TokenId id = whole_.find(piece); id >= 0) {
      call.out.push_back(id);
      return true;
    }
  }
  call.symbols.clear();
  for (const unsigned char c : piece) call.symbols.push_back(byte_symbols_[c]);
  merges_.reduce(call.symbols);
  bool known = true;
  for (const Symbol symbol : call.symbols) {
    if (symbol >= 0) {
      call.out.push_back(symbol);
      continue;
    }
    known = false;
    if (!data_.unk) {
      fail(ErrorKind::kRequest, "the vocabulary has no token for byte 0x{:02x} of the text, and no unknown token",
           -1 - symbol);
    }
    call.out.push_back(*data_.unk);
  }
  return known;
}

}  // namespace mneme
