// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/size32.h"
#include "src/formats/tokenizer_data.h"

namespace mneme {

using TokenId = std::int32_t;

struct EncodeOptions {
  // Special tokens written in the text ("<|end|>") become those tokens. Otherwise they are ordinary characters, so that
  // a document cannot end a turn.
  bool parse_special = false;
  // Prepend the model's beginning-of-sequence token, if it uses one.
  bool add_bos = false;
  // The text continues another: insert no space before it (add_space_prefix, pre_add_prefix_space).
  bool continues = false;
  // Tokens precede the text. Metaspace's `first` then inserts no "▁".
  bool after_tokens = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Errors  kFormat, kUnsupported: invalid or unsupported data (unknown pre-tokenizer, merge of unknown tokens, ...).
  static std::unique_ptr<Tokenizer> make(const TokenizerData& data);

  // Encodes text. User-defined tokens written in the text always become those tokens; the leftmost first, then the
  // longest. Invalid UTF-8 is not an error: bytes that form no character are encoded as bytes. Thread-safe.
  //
  // Errors  kRequest: the vocabulary has no token for a byte of the text, and no usable unknown token (one that ends or
  //         frames turns is not used).
  virtual std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const = 0;

  std::int32_t vocab_size() const { return size32(data_.tokens); }
  // The bytes of a token; may be part of a character. Empty for control tokens and the unknown token unless
  // `show_special`, and for ids without a token and outside of the vocabulary: embedding tables are often padded.
  virtual std::string token_bytes(TokenId id, bool show_special = false) const = 0;
  // The bytes of all tokens, without the space that encode inserts before the text (SentencePiece). Incomplete
  // characters are kept.
  std::string decode(std::span<const TokenId> ids, bool show_special = false) const;

  bool is_end(TokenId id) const;            // ends a generation: eos, eot, and others that the model lists
  std::vector<TokenId> end_tokens() const;  // all of these, ascending
  bool is_control(TokenId id) const;  // a special token, never text; also turn markers that a file stores as ordinary
  // The id has a token: it is neither padding nor a hole of the vocabulary.
  bool is_token(TokenId id) const { return contains(id) && data_.types[id] != TokenType::kAbsent; }
  std::uint8_t added_flags(TokenId id) const { return flags_[id]; }  // kAdded...
  bool contains(TokenId id) const { return id >= 0 && id < vocab_size(); }
  std::optional<TokenId> bos() const { return data_.bos; }
  std::optional<TokenId> eos() const { return data_.eos; }
  bool adds_bos() const { return data_.add_bos; }
  // The token with exactly this text ("<|user|>"), special or not.
  std::optional<TokenId> find(std::string_view token) const;
  const TokenizerData& data() const { return data_; }

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

 protected:
  // Errors  kFormat: arrays of different lengths, ids outside of the vocabulary.
  explicit Tokenizer(const TokenizerData& data);
  TokenizerData data_;
  std::vector<bool> end_;            // by id
  std::vector<std::uint8_t> flags_;  // by id
};

// Appends a token's text: its bytes, without SentencePiece's space before the first text token.
void append_token_text(const Tokenizer& tokenizer, TokenId id, bool show_special, bool& at_start, std::string& out);

// Converts a stream of tokens to text that never ends inside a character. Bytes that cannot form one become U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool show_special = false);
  // Text completed by this token; may be empty.
  std::string push(TokenId id);
  // A character that is not complete will not be, as U+FFFD: a mark follows, and text behind it.
  std::string end_character();
  // The remaining text, incomplete characters as U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool show_special_;
  bool at_start_ = true;
  std::string pending_;
};

}  // namespace mneme
