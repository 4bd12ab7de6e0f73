// The rules that every tokenizer's data must keep, whatever file it came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "src/checkpoint/tokenizer_data.h"

namespace mneme {

// An id as files give it. Errors  kFormat: no token has it (`what` names it).
std::optional<std::int32_t> check_token_id(std::optional<std::int64_t> id, const TokenizerData& data,
                                           std::string_view what, std::string_view file);

// Fills up to n tokens with "[PAD<id>]", unused: models round the size of their embedding up.
//
// Errors  kFormat: more tokens than n
void pad_tokens(TokenizerData& data, std::int64_t n, std::string_view file);

}  // namespace mneme
