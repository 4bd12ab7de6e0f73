// SentencePiece-style BPE (GGUF's `llama` tokenizer, older Llama and Mistral models): "▁" represents a space, the pair
// whose joined token has the highest score merges first, and a character without a token becomes its bytes <0xNN>.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "src/text/tokenizer/bpe.h"
#include "src/text/tokenizer/token_index.h"

namespace mneme {

class SentencePiece final : public Bpe {
 public:
  explicit SentencePiece(const TokenizerData& data);

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;

 private:
  struct Call;
  void read_tokens();
  // Every split of a token into two that merging can reach is a merge, ranked by the token's score.
  void merges_from_scores();
  void merges_from_list();
  void add_merge(std::string_view left, std::string_view right, MergeTable::Merge merge);
  std::optional<TokenId> normal(std::string_view token) const;
  // The symbol of a character: its token, or a negative number for the character itself.
  Symbol character_symbol(std::string_view character, char32_t code_point) const;

  // GGUF's tokens and rules, rather than tokenizer.json's.
  bool llama_cpp() const { return data_.space_rule == SpaceRule::kLlamaCpp; }
  std::string searched_text(TokenId id) const;
  std::string normalised(std::string_view text, bool prepend) const;
  bool inserts_space(const Section& section) const;

  void encode_section(std::string_view text, bool space_before, Call& call) const;
  void encode_word(std::string_view word, Call& call) const;
  bool append_word(std::string_view word, Call& call) const;
  void append_bytes_of(Symbol symbol, Call& call) const;

  TokenIndex normal_;                       // normal tokens by their text in the file
  std::array<TokenId, 256> byte_tokens_{};  // -1: none
  std::array<Symbol, 128> ascii_symbols_{};
  Symbol space_symbol_ = 0;
  // No token has "▁" after another character, so words can be merged one by one.
  bool words_apart_ = true;
};

}  // namespace mneme
