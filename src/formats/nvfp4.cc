#include "src/formats/nvfp4.h"

namespace mneme {
namespace {

// code: of value i of the block.
template <typename Code>
void put_codes(BlockNVFP4& block, Code code) {
  for (int half = 0; half < kNvfp4Block / kQuantBlock; ++half)
    for (int j = 0; j < 16; ++j) {
      const int i = half * kQuantBlock + j;
      block.q[half * 16 + j] = two_nibbles(code(i), code(i + 16));
    }
}

constexpr int kNanScale = 0x7f;  // less its sign

}  // namespace

bool pack_nvfp4_row(std::int64_t k, const std::uint8_t* codes, const std::uint8_t* scales, float factor,
                    BlockNVFP4* out) {
  bool numbers = true;
  for (std::int64_t b = 0; b < k / kNvfp4Block; ++b, codes += kNvfp4Block / 2) {
    out[b].d = factor;
    for (std::uint8_t& scale : out[b].s) {
      scale = *scales++;
      numbers = numbers && (scale & 0x7f) != kNanScale;
    }
    put_codes(out[b], [codes](int i) { return codes[i / 2] >> (4 * (i % 2)); });
  }
  return numbers;
}

void pack_nvfp4_blocks(std::int64_t n, const std::byte* from, float factor, BlockNVFP4* out) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  for (std::int64_t b = 0; b < n; ++b, bytes += kGgufNvfp4Bytes) {
    out[b].d = factor;
    for (int g = 0; g < kNvfp4Block / kNvfp4Group; ++g)
      out[b].s[g] = low_byte((bytes[g] & 0x7f) == kNanScale ? 0 : bytes[g] & 0x7f);
    const std::uint8_t* codes = bytes + kNvfp4Block / kNvfp4Group;
    put_codes(out[b], [codes](int i) { return codes[i / kNvfp4Group * 8 + i % 8] >> (4 * (i / 8 % 2)); });
  }
}

}  // namespace mneme
