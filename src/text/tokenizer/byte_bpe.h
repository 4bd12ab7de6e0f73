// Byte-level BPE, as GPT-2, Llama 3 and Qwen have it: text is cut by regular expressions, and inside a piece bytes
// merge by rank.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizer/added_tokens.h"
#include "src/tokenizer/merge_table.h"
#include "src/tokenizer/pretokenizer.h"
#include "src/tokenizer/token_index.h"
#include "src/tokenizer/tokenizer.h"

namespace mneme {

class ByteBpe final : public Tokenizer {
 public:
  explicit ByteBpe(const TokenizerData& data);

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;
  std::string token_bytes(TokenId id, bool show_special) const override;

 private:
  struct Call;  // the state of one encode

  void read_tokens();
  void read_merges(const TokenIndex& normal);
  void encode_section(std::string_view text, Call& call) const;
  void encode_piece(std::string_view piece, Call& call) const;
  // Appends the ids of a piece; false where a byte has no token.
  bool append_piece(std::string_view piece, Call& call) const;

  std::vector<std::string> bytes_;  // by id: what the token stands for
  std::array<Symbol, 256> byte_symbols_{};
  MergeTable merges_;
  TokenIndex whole_;  // ignore_merges: normal tokens by what they stand for
  Pretokenizer pretokenizer_;
  AddedTokens user_tokens_, all_tokens_;  // user-defined; with the control tokens
};

}  // namespace mneme
