// A unit of a whole layer, represented by the keys that attention looked at most: one vector of all its heads, or one a
// key.
// Source  InfLLM (Xiao et al. 2024), section 3.2; normalised as ActQKV (Xiao et al. 2025) scores it.
#pragma once

#include <cstdint>

#include "src/blocks/mass_window.h"
#include "src/cache/sequence_cache.h"
#include "src/kernels/attention.h"

namespace mneme {

struct UnitTokens {
  const SequenceCache* cache = nullptr;
  std::int32_t layer = 0;
  std::int32_t begin = 0, end = 0;  // positions
};

// For every query head the mean of the keys, as they are stored, of the `top` tokens with most mass; all of them
// together scaled to length 1.
//   entry  [n_heads, D] of shape.kv_dtype out
// Ties  the larger position.   NaN  a mass that is NaN ranks below all others; in a key it goes through. Zero keys give
// a zero entry.   Requires  mass has the tokens; 1 <= top.
void build_representative(const UnitTokens& unit, const MassWindow& mass, const AttentionShape& shape, std::int32_t top,
                          std::byte* entry);

// The keys, as they are stored, of the `top` tokens with most mass, mean over all query heads: for each token a vector
// of its keys in all KV heads side by side, scaled so that with every key repeated for the query heads of its group it
// has length 1. Tokens in order.
//   entry  [top, n_kv_heads, D] of shape.kv_dtype out
// Ties, NaN  as above.   Requires  1 <= top <= the unit's tokens; mass has the tokens, unless all of them are taken.
void build_key_rows(const UnitTokens& unit, const MassWindow& mass, const AttentionShape& shape, std::int32_t top,
                    std::byte* entry);

}  // namespace mneme
