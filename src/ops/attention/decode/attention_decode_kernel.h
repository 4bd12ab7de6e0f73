// Internal to decode attention: the vector kernel that attends one range of one head's entries.
#pragma once

#include "src/kernels/attention.h"

namespace mneme {

// Where a range begins among the entries of a head.
struct DecodeCursor {
  std::int32_t part = 0;
  std::int32_t run = 0;     // in the part
  std::int32_t offset = 0;  // tokens into the run
  std::int64_t token = 0;   // tokens into the part: index into log_weight
};

// Softmax statistics in base 2: `sum` and `out` are relative to 2^top.
struct DecodePartial {
  float* top = nullptr;  // [G] largest score * log2(e); -inf: no entry of any weight
  float* sum = nullptr;  // [G]
  float* out = nullptr;  // [G, D] not yet divided by `sum`
};

// Attends the n_tokens entries from `begin` on and writes `partial`. `scratch` is the calling thread's.
std::size_t decode_scratch_bytes(const AttentionShape& shape);
void attend_range(std::span<const DecodePart> parts, const DecodeCursor& begin, std::int64_t n_tokens,
                  const AttentionShape& shape, std::byte* scratch, const DecodePartial& partial);

// The same without vectors, for a CPU that Highway has none for.
void attend_range_plain(std::span<const DecodePart> parts, const DecodeCursor& begin, std::int64_t n_tokens,
                        const AttentionShape& shape, const DecodePartial& partial);

}  // namespace mneme
