// Which tokens a part of a text has, though tokens reach over its ends.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace mneme {

// Stands in for the part in the other text: hardly any text has it.
constexpr std::string_view kOtherText = "\x01";

// The tokens of `text` that are not also those of `other`, counted from both ends, where `other` is the same text with
// another part in the place of one: the part's tokens, those included that reach over its ends. [first, second), empty
// where the two do not differ.
std::pair<std::int32_t, std::int32_t> differing_span(std::span<const std::int32_t> text,
                                                     std::span<const std::int32_t> other);

}  // namespace mneme
