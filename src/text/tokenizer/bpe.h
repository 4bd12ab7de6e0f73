// What byte-level and SentencePiece BPE share: bytes of tokens, merges, and the way from a text to its sections.
#pragma once

#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/function_ref.h"
#include "src/text/tokenizer/added_tokens.h"
#include "src/text/tokenizer/merge_table.h"
#include "src/text/tokenizer/piece_cache.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

class Bpe : public Tokenizer {
 public:
  std::string token_bytes(TokenId id, bool show_special) const final;

 protected:
  // State of one encode call.
  struct Call {
    explicit Call(std::size_t text_bytes) : cache(text_bytes) { out.reserve(text_bytes / 4 + 8); }
    // `text` with a space before it, which lives as long as the call.
    std::string_view with_space(std::string_view text) {
      return prefixed.emplace_back(std::string(1, ' ').append(text));
    }

    PieceCache cache;
    std::vector<Symbol> symbols;
    std::list<std::string> prefixed;  // the cache points into them
    std::vector<TokenId> out;
  };

  using Tokenizer::Tokenizer;

  // A section between added tokens.
  struct Section : TextSection {
    bool continues = false;  // it is the first of a text that continues another
  };
  // Appends the beginning-of-sequence token, where one is due, and then in order the tokens that raw text spells out
  // and, by `on_text`, the sections between them. `normalise` changes the text between tokens of raw text before those
  // of normalised text (kAddedNormalized) are searched in it; what it returns lives as long as the call.
  void encode_sections(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& out,
                       FunctionRef<std::string_view(const Section&)> normalise,
                       FunctionRef<void(const Section&)> on_text) const;
  // `text`: of the token, as it is searched.
  void add_added(std::string_view text, TokenId id);

  std::vector<std::string> bytes_;  // by id: the bytes of the token
  MergeTable merges_;
  AddedTokens user_tokens_, all_tokens_;          // user-defined; with the control tokens
  AddedTokens user_normalized_, all_normalized_;  // those of normalised text
};

}  // namespace mneme
