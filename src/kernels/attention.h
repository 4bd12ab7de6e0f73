// Attention over keys and values that lie in pages: for one new token (decode) and for many (prefill), both by parts
// that are merged by log-sum-exp.
//
// A token's key and value lie side by side, [K: D | V: D] in bf16 or f16; the pairs of a page follow one another. So a
// page, a stretch of one and a single token are each one KvRun.
//
// Scores, softmax and sums are in f32; prefill over bf16 keys may take its products in bf16 pairs (docs/numerics.md).
// Scores are q . k * scale + log_weight; the output is the softmax-weighted sum of values over the entries of all parts
// together. No entries at all: out = 0, lse = -inf. NaN in a score gives NaN in that row's output and no other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kernels/cpu_context.h"
#include "src/tensor/dtype.h"

namespace mneme {

// Tokens whose [K | V] pairs follow one another in memory.
struct KvRun {
  const std::byte* kv = nullptr;
  std::int32_t n_tokens = 0;
};

struct AttentionShape {
  std::int32_t group = 1;         // G, query heads that share one KV head: 1 to 16
  std::int32_t head_dim = 0;      // D, a multiple of 8, at most 256
  DType kv_dtype = DType::kBF16;  // or kF16
  float scale = 0.0f;             // 1 / sqrt(D), usually

  std::size_t token_bytes() const { return 2 * static_cast<std::size_t>(head_dim) * 2; }
};

// ---- one query row
// -----------------------------------------------------------------------------------------------------------

// Entries that one form of the query attends.
struct DecodePart {
  const float* q = nullptr;           // [G, D], already turned as this part wants it
  std::span<const KvRun> runs;        // in order of position
  const float* log_weight = nullptr;  // one per token over all runs, or null (0)
};

// All that one (sequence, KV head) computes.
struct DecodeHead {
  std::span<const DecodePart> parts;
  float* out = nullptr;  // [G, D]
  float* lse = nullptr;  // [G] out, log of the sum of exp of all scores; or null
};

// Splits long contexts over the workers and merges; kFixed rounding: the split depends on the head's own length alone.
void attend_decode_ref(std::span<const DecodeHead> heads, const AttentionShape& shape);
void attend_decode_cpu(std::span<const DecodeHead> heads, const AttentionShape& shape, const CpuContext& context);

// ---- many query rows
// -----------------------------------------------------------------------------------------------------------

struct PrefillPart {
  const float* q = nullptr;     // row i, head g: q + i * q_stride + g * D
  std::int64_t q_stride = 0;    // elements between rows
  std::span<const KvRun> runs;  // M tokens in all, in order of position
  // true: row i sees the tokens j < M - n_rows + 1 + i, the last row all of them; with M < n_rows the first rows see
  // none. false: every row sees every token.
  bool causal = true;
  // causal only: of those, the last `window` alone. 0: no limit.
  std::int32_t window = 0;
};

// All that one (sequence, KV head) computes for n_rows new tokens.
struct PrefillHead {
  std::span<const PrefillPart> parts;
  std::int32_t n_rows = 0;
  std::byte* out = nullptr;       // row i, head g: element offset i * out_stride + g * D
  std::int64_t out_stride = 0;    // elements
  DType out_dtype = DType::kF32;  // or kBF16
  float* lse = nullptr;           // [n_rows, G] out, or null
};

void attend_prefill_ref(std::span<const PrefillHead> heads, const AttentionShape& shape);
void attend_prefill_cpu(std::span<const PrefillHead> heads, const AttentionShape& shape, const CpuContext& context);

// ---- storing
// -------------------------------------------------------------------------------------------------------------------

// Writes one token's key and value as a [K | V] pair, rounded to nearest even.   k, v [D] f32.
void store_kv(const float* k, const float* v, const AttentionShape& shape, std::byte* token);

}  // namespace mneme
