// Keys and values in 8 bits.
//
//   token  [K: D codes | V: D codes | scale of K: f32 | scale of V: f32]; 2 D + 8 bytes
//   int8   value = code * scale; codes -127 to 127, scale = max |x| / 127
//   fp8    value = e4m3 code * scale; scale = max |x| / 448
//
// Each row of D has a scale of its own. Pages are append-only and shared: one scale for a page would grow with its
// largest token, and the tokens that are stored already, which forks and indexes have read, would be rounded again.
// 8 bytes a token are 3 % of D = 128.
//
// Readers see bf16: code * scale rounded to nearest even, so that attention and indexes are those of a bf16 cache that
// holds the same numbers, bit for bit.
//
// Error   |x - value| <= scale / 2 for int8; <= max(|x| / 16, scale / 1024) for fp8; times 1 + 2^-8 more, with bf16's
//         |value| / 256.
// NaN     a row with NaN or infinity reads as NaN throughout. A row whose max |x| is below 2^-100 reads as 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kv/kv_run.h"
#include "src/tensor/buffer.h"

namespace mneme {

// Quantises one row.
//   x      [D]   f32
//   codes  [D]   8 bits each, out
// Requires  dtype is kInt8 or kFp8; D is a multiple of 8. Returns the scale.
float quantise_row_ref(const float* x, std::int32_t head_dim, DType dtype, std::byte* codes);
float quantise_row_cpu(const float* x, std::int32_t head_dim, DType dtype, std::byte* codes);

// What readers see of one row.   codes [D] 8 bits in; to [D] bf16 out
void widen_row_ref(const std::byte* codes, std::int32_t head_dim, float scale, DType dtype, std::byte* to);

enum class KvPart : std::uint8_t { kKeysAndValues, kKeys };

// `runs` themselves where they are in 16 bits; else one run in `scratch`, [tokens, K | V] bf16. With kKeys values are
// left undefined. The result is not moved: `runs` may point into it.
class WideTokens {
 public:
  WideTokens(std::span<const KvRun> runs, const AttentionShape& shape, Buffer& scratch,
             KvPart part = KvPart::kKeysAndValues);
  WideTokens(const WideTokens&) = delete;
  WideTokens& operator=(const WideTokens&) = delete;

  std::span<const KvRun> runs() const { return runs_; }
  const AttentionShape& shape() const { return shape_; }

 private:
  KvRun copy_;
  std::span<const KvRun> runs_;
  AttentionShape shape_;
};

// Widens scattered tokens.   rows [n] addresses of [K | V]; to [n, 2, D] bf16 out
void widen_tokens_cpu(std::span<const std::byte* const> rows, const AttentionShape& shape, KvPart part, std::byte* to);

// Element `i` of a token's [K | V], as readers see it; the plain form, for 8 and 16 bits.
float load_kv(const std::byte* token, std::int32_t i, DType dtype, std::int32_t head_dim);

}  // namespace mneme
