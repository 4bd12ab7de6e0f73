// Plain English prose without end, made from a grammar written for this project: `mneme eval` needs no text of anybody
// else's to hide facts in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mneme::eval {

// Essays with a title each, of at least n_chars characters in all; a pure function of (n_chars, seed), the same on
// every machine. A longer text begins with the shorter one.
std::string generated_prose(std::size_t n_chars, std::uint64_t seed);

}  // namespace mneme::eval
