// Attention over paged keys and values, for one new token (decode) and for many (prefill), as parts that are merged by
// log-sum-exp.
//
// A token's key and value are adjacent, [K: D | V: D] in bf16 or f16; the pairs of a page are contiguous. A page, a
// range of a page and a single token are each one KvRun.
//
//   scores  q . k * scale + log_weight
//   out     softmax-weighted sum of values over the entries of all parts together
//   lse     log of the sum of exp of all scores
//   sinks   an attention sink a query head, in both: one more score, unscaled, without a value; added once, behind the
//           merge of all parts
//
// Numerics  scores, softmax and sums in f32; prefill over bf16 keys may multiply in bf16
//           (docs/design/numerics.md).
// Empty     no entries at all: out = 0, lse = -inf or the sink.
// NaN       a NaN score gives NaN in that row's output and in no other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kv/kv_run.h"
#include "src/ops/simd/cpu_context.h"

namespace mneme {

// ---- one query row

// Entries attended with one form of the query.
struct DecodePart {
  const float* q = nullptr;           // [G, D], rotated for this part
  std::span<const KvRun> runs;        // in order of position
  const float* log_weight = nullptr;  // one per token over all runs; null: 0
};

// Work of one (sequence, KV head).
struct DecodeHead {
  std::span<const DecodePart> parts;
  float* out = nullptr;          // [G, D]
  float* lse = nullptr;          // [G] out; or null
  const float* sinks = nullptr;  // [G]; null: none
};
// Splits long contexts over the workers and merges by LSE (split-KV). With Rounding::kFixed the split depends on the
// head's own length alone.
void attend_decode_ref(std::span<const DecodeHead> heads, const AttentionShape& shape);
void attend_decode_cpu(std::span<const DecodeHead> heads, const AttentionShape& shape, const CpuContext& context);

// ---- many query rows

struct PrefillPart {
  const float* q = nullptr;     // row i, head g: q + i * q_stride + g * D
  std::int64_t q_stride = 0;    // elements between rows
  std::span<const KvRun> runs;  // M tokens in total, in order of position
  // true: row i attends tokens j < M - n_rows + 1 + i, so the last row attends all; with M < n_rows the first rows
  // attend none. false: every row attends every token.
  bool causal = true;
  // causal only: attend only the last `window` of these. 0: no limit.
  std::int32_t window = 0;
  // Of the first token. Sums run over tiles that start at multiples of 64 positions: with a window, where a chunk
  // starts would otherwise move the tiles and with them the rounding of a row.
  std::int32_t first_position = 0;
};

// Work of one (sequence, KV head) for n_rows new tokens.
struct PrefillHead {
  std::span<const PrefillPart> parts;
  std::int32_t n_rows = 0;
  std::byte* out = nullptr;       // row i, head g: element offset i * out_stride + g * D
  std::int64_t out_stride = 0;    // elements
  DType out_dtype = DType::kF32;  // or kBF16
  float* lse = nullptr;           // [n_rows, G] out, or null
  const float* sinks = nullptr;   // [G]; null: none
};

void attend_prefill_ref(std::span<const PrefillHead> heads, const AttentionShape& shape);
void attend_prefill_cpu(std::span<const PrefillHead> heads, const AttentionShape& shape, const CpuContext& context);

}  // namespace mneme
