// Finds the tokens of a part of a text, including tokens that span its ends.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace mneme {

// Replaces the part in the comparison text: hardly any text contains it.
constexpr std::string_view kOtherText = "\x01";

// Token range [first, second) of `text` in which it differs from `other`, the same text with another part: common
// prefix and suffix removed. These are the part's tokens, including those that span its ends. Empty where the two are
// equal.
std::pair<std::int32_t, std::int32_t> differing_span(std::span<const std::int32_t> text,
                                                     std::span<const std::int32_t> other);

}  // namespace mneme
