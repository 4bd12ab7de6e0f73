// NVFP4 of files to BlockNVFP4 (src/ops/gemm/quant.h): codes of e2m1, a scale in e4m3 for 16 of them, a factor for the
// matrix.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/ops/gemm/quant.h"

namespace mneme {

// Bytes of 64 values in type 40 of GGUF: four scales, then for each of them eight bytes, byte i with value i in its low
// nibble and value i + 8 in its high one.
inline constexpr int kGgufNvfp4Bytes = 36;

// A row of k values of a folder. Requires  k % 64 == 0.
//
//   codes   [k / 2] value 2 j in the low nibble of byte j, 2 j + 1 in the high one
//   scales  [k / 16] e4m3
//   factor  what all values are multiplied with
//   out     [k / 64]
//
// False: a scale is NaN.
bool pack_nvfp4_row(std::int64_t k, const std::uint8_t* codes, const std::uint8_t* scales, float factor,
                    BlockNVFP4* out);

// The same of n blocks of a GGUF file. Bit 7 of its scales is not read, and 0x7f is 0, as in gguf-py 0.19.
void pack_nvfp4_blocks(std::int64_t n, const std::byte* from, float factor, BlockNVFP4* out);

}  // namespace mneme
