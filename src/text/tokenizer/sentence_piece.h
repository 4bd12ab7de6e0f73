// SentencePiece-style BPE, as GGUF's `llama` tokenizer and the older Llama and Mistral models have it: "▁" stands for a
// space, the pair whose joined token has the highest score merges first, and a character without a token becomes its
// bytes <0xNN>.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizer/added_tokens.h"
#include "src/tokenizer/merge_table.h"
#include "src/tokenizer/token_index.h"
#include "src/tokenizer/tokenizer.h"

namespace mneme {

class SentencePiece final : public Tokenizer {
 public:
  explicit SentencePiece(const TokenizerData& data);

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;
  std::string token_bytes(TokenId id, bool show_special) const override;

 private:
  struct Call;
  void read_tokens();
  // Every way to cut a token in two that merging can meet is a merge; its rank is the place of the token's score.
  void merges_from_scores();
  void merges_from_list();
  void add_merge(std::string_view left, std::string_view right, MergeTable::Merge merge);
  std::optional<TokenId> normal(std::string_view token) const;
  // The symbol of one character: its token, or a negative number that stands for the character itself.
  Symbol character_symbol(std::string_view character, char32_t code_point) const;

  void encode_section(std::string_view text, bool space_before, Call& call) const;
  void encode_word(std::string_view word, Call& call) const;
  bool append_word(std::string_view word, Call& call) const;
  void append_bytes_of(Symbol symbol, Call& call) const;

  std::vector<std::string> bytes_;          // by id: what the token stands for
  TokenIndex normal_;                       // normal tokens by the file's text
  std::array<TokenId, 256> byte_tokens_{};  // -1: none
  std::array<Symbol, 128> ascii_symbols_{};
  Symbol space_symbol_ = 0;
  MergeTable merges_;
  // No token has a "▁" behind another character, so words can be merged one by one.
  bool words_apart_ = true;
  AddedTokens user_tokens_, all_tokens_;
};

}  // namespace mneme
