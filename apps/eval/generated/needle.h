// Needle in a haystack and passkey, for any tokenizer at any length.
#pragma once

#include <cstdint>

#include "apps/eval/generated/generated.h"
#include "apps/eval/generated/token_counter.h"
#include "apps/eval/prose/text_source.h"

namespace mneme::eval {

// "The special magic CITY number is: NUMBER" in prose at `depth` (0 to 1), behind the end of a sentence; the answer is
// the number. The form that needs no judge. `others` sentences about other cities are at random places.
//
// Requires  others <= 15.
// Errors  kOption: too short. Source  MInference's needle test; positions as in gkamradt's.
GeneratedQuestion make_needle(const TextSource& prose, const TokenCounter& counter, std::int64_t tokens, double depth,
                              std::uint64_t seed, std::int64_t number, int others = 0);

// "The pass key is NUMBER" in repeated lines about grass, `depth` of their characters before it.
//
// Errors  kOption: too short. Source  Mohtashami and Jaggi 2023; lengths by steps of 128 characters (Peng et al. 2023).
GeneratedQuestion make_passkey(const TokenCounter& counter, std::int64_t tokens, double depth, std::uint64_t seed,
                               std::int64_t number);

}  // namespace mneme::eval
