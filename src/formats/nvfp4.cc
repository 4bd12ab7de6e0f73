#include "src/formats/nvfp4.h"

namespace mneme {
namespace {

// Puts a code at value i of a block of zeros.
void put_code(BlockNVFP4& block, int i, int code) {
  std::uint8_t& both = block.q[i / kQuantBlock * 16 + i % 16];
  both = low_byte(both | (i % kQuantBlock < 16 ? code : code << 4));
}

bool is_nan(std::uint8_t scale) {
  return (scale & 0x7f) == 0x7f;
}

}  // namespace

bool pack_nvfp4_row(std::int64_t k, const std::uint8_t* codes, const std::uint8_t* scales, float factor,
                    BlockNVFP4* out) {
  bool numbers = true;
  for (std::int64_t b = 0; b < k / kNvfp4Block; ++b) {
    out[b] = {.d = factor, .s = {}, .q = {}};
    for (int g = 0; g < kNvfp4Block / kNvfp4Group; ++g) {
      out[b].s[g] = scales[4 * b + g];
      numbers = numbers && !is_nan(out[b].s[g]);
    }
    for (int i = 0; i < kNvfp4Block; ++i) {
      const std::uint8_t both = codes[b * (kNvfp4Block / 2) + i / 2];
      put_code(out[b], i, i % 2 == 0 ? both & 15 : both >> 4);
    }
  }
  return numbers;
}

void pack_nvfp4_blocks(std::int64_t n, const std::byte* from, float factor, BlockNVFP4* out) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  for (std::int64_t b = 0; b < n; ++b, bytes += kGgufNvfp4Bytes) {
    out[b] = {.d = factor, .s = {}, .q = {}};
    for (int g = 0; g < kNvfp4Block / kNvfp4Group; ++g) {
      const int scale = bytes[g] & 0x7f;
      out[b].s[g] = low_byte(scale == 0x7f ? 0 : scale);
      for (int i = 0; i < kNvfp4Group; ++i) {
        const std::uint8_t both = bytes[4 + 8 * g + i % 8];
        put_code(out[b], kNvfp4Group * g + i, i < 8 ? both & 15 : both >> 4);
      }
    }
  }
}

}  // namespace mneme
