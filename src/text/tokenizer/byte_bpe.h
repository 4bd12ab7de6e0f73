// Byte-level BPE (GPT-2, Llama 3, Qwen): regular expressions split the text into pieces, and within a piece bytes merge
// by rank.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "src/text/tokenizer/bpe.h"
#include "src/text/tokenizer/pretokenizer.h"
#include "src/text/tokenizer/token_index.h"

namespace mneme {

class ByteBpe final : public Bpe {
 public:
  explicit ByteBpe(const TokenizerData& data);

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;

 private:
  struct Call;

  void read_tokens();
  void read_merges(const TokenIndex& normal);
  void encode_section(std::string_view text, Call& call) const;
  void encode_piece(std::string_view piece, Call& call) const;
  // Appends the ids of a piece; false where a byte has no token.
  bool append_piece(std::string_view piece, Call& call) const;

  std::array<Symbol, 256> byte_symbols_{};
  TokenIndex whole_;  // ignore_merges: normal tokens by their bytes
  Pretokenizer pretokenizer_;
};

}  // namespace mneme
