// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/tokenizer_data.h"

namespace mneme {

using TokenId = std::int32_t;

struct EncodeOptions {
  // Special tokens written in the text ("<|end|>") become those tokens; otherwise they are ordinary characters, so that
  // a document cannot end a turn.
  bool parse_special = false;
  // Put the model's beginning-of-sequence token first, if it wants one.
  bool add_bos = false;
  // The text goes on from another: no space is put before it (add_space_prefix, pre_add_prefix_space).
  bool continues = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Errors  kFormat, kUnsupported: what the data says cannot be (unknown pre-tokenizer, merge of unknown tokens, ...).
  static std::unique_ptr<Tokenizer> make(const TokenizerData& data);

  // User-defined tokens written in the text become those tokens always; of several the leftmost, then the longest.
  // Invalid UTF-8 in `text` is not an error here: bytes that form no character are encoded as the bytes they are.
  // Thread-safe.
  //
  // Errors  kRequest: the vocabulary has no token for a byte of the text, and no unknown token either (one
  //         that ends or frames turns does not count).
  virtual std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const = 0;

  std::int32_t vocab_size() const { return static_cast<std::int32_t>(data_.tokens.size()); }
  // The bytes that a token stands for; may be half a character. Control tokens stand for nothing unless `show_special`,
  // and so does the unknown token. Ids outside of the vocabulary stand for nothing: embedding tables are often padded.
  virtual std::string token_bytes(TokenId id, bool show_special = false) const = 0;
  // All of them together, without the space that encode put before the text (SentencePiece). Incomplete characters stay
  // as they are.
  std::string decode(std::span<const TokenId> ids, bool show_special = false) const;

  bool is_end(TokenId id) const;      // ends a generation: eos, eot, and the others that the model names
  bool is_control(TokenId id) const;  // a special token, never text; also turn markers that a file calls ordinary
  bool contains(TokenId id) const { return id >= 0 && id < vocab_size(); }
  std::optional<TokenId> bos() const { return data_.bos; }
  std::optional<TokenId> eos() const { return data_.eos; }
  bool adds_bos() const { return data_.add_bos; }
  // The token written exactly so ("<|user|>"), special or not.
  std::optional<TokenId> find(std::string_view token) const;
  const TokenizerData& data() const { return data_; }

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

 protected:
  // Errors  kFormat: arrays of different lengths, ids outside of the vocabulary.
  explicit Tokenizer(const TokenizerData& data);
  TokenizerData data_;
  std::vector<bool> end_;  // by id
};

// What a token adds to a text: its bytes, without SentencePiece's space before the first token that is text.
void append_token_text(const Tokenizer& tokenizer, TokenId id, bool show_special, bool& at_start, std::string& out);

// Turns a stream of tokens into text that never ends in the middle of a character. Bytes that can no longer become one
// are given out as U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool show_special = false);
  // What became certain with this token; may be empty.
  std::string push(TokenId id);
  // What is left at the end, incomplete characters as U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool show_special_;
  bool at_start_ = true;
  std::string pending_;
};

}  // namespace mneme
