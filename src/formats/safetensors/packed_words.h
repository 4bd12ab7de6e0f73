// Words of eight values of 4 bits, as quantised safetensors have them.
#pragma once

#include <cstdint>

#include "src/formats/safetensors/quantised.h"

namespace mneme {

inline int nibble_of(std::uint32_t word, std::int64_t i) {
  return static_cast<int>(word >> (4 * i) & 15);
}

// Eight zero points of a word of gptq's.
inline std::uint32_t zeros_of(std::uint32_t stored, GptqZeros how) {
  constexpr std::uint32_t kOnes = 0x11111111, kHigh = 0x88888888;
  if (how == GptqZeros::kAsTheyAre) return stored;
  if (how == GptqZeros::kOneLessByWord) return stored + kOnes;
  return ((stored & ~kHigh) + kOnes) ^ (stored & kHigh);  // without carries between nibbles
}

}  // namespace mneme
