// Words that the sources of tools/make_ruler_counts.py and tools/make_needle_counts.py are made of.
#pragma once

#include <cstdint>
#include <string>

namespace mneme::eval {

// The i-th word: five letters, all different for i below 26^4.
inline std::string word(std::int64_t i) {
  std::string out;
  for (std::int64_t power = 1; out.size() < 5; power *= 26) out += static_cast<char>('a' + i * 7919 / power % 26);
  return out;
}

}  // namespace mneme::eval
