// Validates tokenizer data, whatever file it came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "src/formats/tokenizer_data.h"

namespace mneme {

// Checks a token id from a file. Errors  kFormat: not in the vocabulary (`what` names it).
std::optional<std::int32_t> check_token_id(std::optional<std::int64_t> id, const TokenizerData& data,
                                           std::string_view what, std::string_view file);

// Pads the vocabulary to n tokens with ids without a token, named "[PAD<id>]": models round the size of their embedding up.
//
// Errors  kFormat: more than n tokens
void pad_tokens(TokenizerData& data, std::int64_t n, std::string_view file);

// "always", "first", "never", "prepend", "replace": of every rule but kLlamaCpp.
std::string_view space_rule_name(SpaceRule rule);
std::optional<SpaceRule> space_rule_of(std::string_view name);

}  // namespace mneme
