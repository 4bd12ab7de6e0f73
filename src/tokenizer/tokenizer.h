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
  // Special tokens written in the text ("<|end|>") become those tokens; otherwise they are ordinary characters, so that a
  // document cannot end a turn.
  bool parse_special = false;
  // Put the model's beginning-of-sequence token first, if it wants one.
  bool add_bos = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Errors  kFormat, kUnsupported: what the data says cannot be (unknown pre-tokenizer, merge of unknown tokens, ...).
  static std::unique_ptr<Tokenizer> make(const TokenizerData& data);

  // Invalid UTF-8 in `text` is not an error here: bytes that form no character are encoded as the bytes they are.
  // Thread-safe.
  virtual std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const = 0;

  std::int32_t vocab_size() const { return static_cast<std::int32_t>(data_.tokens.size()); }
  // The bytes that a token stands for; may be half a character. Control tokens stand for nothing unless `show_special`.
  virtual std::string token_bytes(TokenId id, bool show_special = false) const = 0;
  // All of them together. Incomplete characters stay as they are.
  std::string decode(std::span<const TokenId> ids, bool show_special = false) const;

  bool is_end(TokenId id) const;      // ends a generation: eos, eot, and the others that the model names
  bool is_control(TokenId id) const;  // a special token, never text
  std::optional<TokenId> bos() const { return data_.bos; }
  std::optional<TokenId> eos() const { return data_.eos; }
  bool adds_bos() const { return data_.add_bos; }
  // The token written exactly so ("<|user|>"), special or not.
  std::optional<TokenId> find(std::string_view token) const;
  const TokenizerData& data() const { return data_; }

 protected:
  explicit Tokenizer(const TokenizerData& data);
  TokenizerData data_;
  std::vector<bool> end_;  // by id
};

// Turns a stream of tokens into text that never ends in the middle of a character. Bytes that can no longer become one are
// given out as U+FFFD.
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
  std::string pending_;
};

}  // namespace mneme
