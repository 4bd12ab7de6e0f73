// The answer of /tokenize as JSON text, written token by token: as a tree of JSON values it takes some 250 times the
// text's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "src/text/tokenizer/tokenizer.h"

namespace mneme::server {

struct TokenizeReply {
  std::int64_t context = 0;   // tokens, reported as max_model_len
  bool with_pieces = false;   // {"id", "piece"} for each token, in place of its id
  std::size_t max_bytes = 0;  // of the JSON text
};

// {"count", "max_model_len", "tokens"}. A piece is a string, or, where its bytes are no whole characters, an array of
// them, as llama.cpp's server has it.
//
// Errors  ApiError 413: longer than max_bytes.
std::string tokenize_json(const Tokenizer& tokenizer, std::span<const TokenId> tokens, const TokenizeReply& reply);

}  // namespace mneme::server
