// Unlimited plain English prose from a grammar written for this project, so that `mneme eval` needs no other text to
// hide facts in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mneme::eval {

// Titled essays of at least n_chars characters in total. A pure function of (n_chars, seed), equal on every machine; a
// shorter text is a prefix of a longer one.
std::string generated_prose(std::size_t n_chars, std::uint64_t seed);

}  // namespace mneme::eval
