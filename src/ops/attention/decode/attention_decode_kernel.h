// Internal to decode attention: the vector kernel for one KV split of one head.
#pragma once

#include "src/ops/attention/attention.h"

namespace mneme {

// Start of a KV split among the entries of a head.
struct DecodeCursor {
  std::int32_t part = 0;
  std::int32_t run = 0;     // in the part
  std::int32_t offset = 0;  // tokens into the run
  std::int64_t token = 0;   // tokens into the part: index into log_weight
};

// Partial softmax in base 2: `sum` and `out` are relative to 2^top.
struct DecodePartial {
  float* top = nullptr;  // [G] largest score * log2(e); -inf: no entry with nonzero weight
  float* sum = nullptr;  // [G]
  float* out = nullptr;  // [G, D], not divided by `sum`
};

// Attends n_tokens entries starting at `begin` and writes `partial`. `scratch` belongs to the calling thread.
std::size_t decode_scratch_bytes(const AttentionShape& shape);
void attend_range(std::span<const DecodePart> parts, const DecodeCursor& begin, std::int64_t n_tokens,
                  const AttentionShape& shape, std::byte* scratch, const DecodePartial& partial);

// Scalar form, for CPUs without a Highway vector target.
void attend_range_plain(std::span<const DecodePart> parts, const DecodeCursor& begin, std::int64_t n_tokens,
                        const AttentionShape& shape, const DecodePartial& partial);

}  // namespace mneme
