#include "src/tokenizer/byte_bpe.h"

#include <list>
#include <utility>

#include "src/base/error.h"
#include "src/checkpoint/utf8.h"
#include "src/tokenizer/byte_chars.h"
#include "src/tokenizer/piece_cache.h"
#include "src/tokenizer/utf8_step.h"

namespace mneme {
namespace {

std::vector<std::string> patterns_of(const TokenizerData& data) {
  return data.pre.empty() ? data.pre_patterns : Pretokenizer::preset(data.pre).patterns;
}

std::string with_space(std::string_view text) {
  return std::string(1, ' ').append(text);
}

// A byte that has no token of its own.
Symbol no_token(std::uint8_t byte) {
  return -1 - Symbol{byte};
}

}  // namespace

struct ByteBpe::Call {
  Call(const Pretokenizer& pretokenizer, std::size_t text_bytes) : scratch(pretokenizer), cache(text_bytes) {}
  Pretokenizer::Scratch scratch;
  PieceCache cache;
  std::vector<Symbol> symbols;
  std::list<std::string> prefixed;  // sections with a space before them; the cache points into them
  std::vector<TokenId> out;
};

ByteBpe::ByteBpe(const TokenizerData& data) : Tokenizer(data), whole_(bytes_, 0), pretokenizer_(patterns_of(data)) {
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
    const auto id = static_cast<TokenId>(i);
    const TokenType type = data_.types[i];
    std::optional<std::string> bytes;
    if (type == TokenType::kNormal || type == TokenType::kUnused) bytes = from_byte_chars(token);
    const bool normal_text = bytes && type == TokenType::kNormal;
    if (normal_text) normal.add(id);
    bytes_[i] = bytes ? std::move(*bytes) : token;
    if (normal_text && data_.ignore_merges) whole_.add(id);
    if (normal_text && bytes_[i].size() == 1) {
      Symbol& symbol = byte_symbols_[static_cast<std::uint8_t>(bytes_[i][0])];
      if (symbol < 0) symbol = id;
    }
    if (type == TokenType::kUserDefined) user_tokens_.add(token, id);
    if (type == TokenType::kUserDefined || type == TokenType::kControl || type == TokenType::kUnknown) {
      all_tokens_.add(token, id);
    }
  }
  read_merges(normal);
}

void ByteBpe::read_merges(const TokenIndex& normal) {
  merges_ = MergeTable(data_.merges.size());
  std::string joined;
  std::optional<TokenIndex> all;  // made when it is needed, which is hardly ever
  // A part that is a control or user-defined token makes no merge: text must never become the one, and the other is
  // found before merging begins.
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

std::string ByteBpe::token_bytes(TokenId id, bool show_special) const {
  if (!contains(id)) return {};
  const TokenType type = data_.types[static_cast<std::size_t>(id)];
  if (!show_special && (type == TokenType::kControl || type == TokenType::kUnknown)) return {};
  return bytes_[static_cast<std::size_t>(id)];
}

std::vector<TokenId> ByteBpe::encode(std::string_view text, const EncodeOptions& options) const {
  Call call(pretokenizer_, text.size());
  call.out.reserve(text.size() / 4 + 8);
  if (options.add_bos && data_.add_bos && data_.bos) call.out.push_back(*data_.bos);
  bool continues = options.continues;
  const TextSections sections{options.parse_special ? all_tokens_ : user_tokens_, *this};
  sections.for_each(
      text,
      [&](std::string_view section, bool) {
        if (data_.pre_add_prefix_space && !continues && section[0] != ' ') {
          section = call.prefixed.emplace_back(with_space(section));
        }
        continues = false;
        encode_section(section, call);
      },
      [&](TokenId id) {
        continues = false;
        call.out.push_back(id);
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
  if (piece.size() > PieceCache::kLongestPiece) {
    append_piece(piece, call);
    return;
  }
  PieceCache::Entry& entry = call.cache.slot(piece);
  const std::size_t at = call.out.size();
  if (entry.holds(piece)) {
    call.out.resize(at + entry.count);
    for (std::size_t i = 0; i < entry.count; ++i) call.out[at + i] = call.out[entry.at + i];
    return;
  }
  if (append_piece(piece, call)) {
    entry = {piece.data(), static_cast<std::uint32_t>(piece.size()), static_cast<std::uint32_t>(call.out.size() - at),
             at};
  }
}

bool ByteBpe::append_piece(std::string_view piece, Call& call) const {
  if (data_.ignore_merges) {
    if (const TokenId id = whole_.find(piece); id >= 0) {
      call.out.push_back(id);
      return true;
    }
  }
  call.symbols.clear();
  for (const char c : piece) call.symbols.push_back(byte_symbols_[static_cast<std::uint8_t>(c)]);
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
