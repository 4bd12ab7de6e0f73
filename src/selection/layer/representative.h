// Representatives of a unit of a whole layer: built from the keys with the most attention mass, one vector over all
// heads, or one per key.
// Source  InfLLM (Xiao et al. 2024), section 3.2; normalised as in ActQKV (Xiao et al. 2025).
#pragma once

#include <cstdint>

#include "src/kv/kv_run.h"
#include "src/kv/sequence_cache.h"
#include "src/selection/mass/mass_window.h"

namespace mneme {

struct UnitTokens {
  const SequenceCache* cache = nullptr;
  std::int32_t layer = 0;
  std::int32_t begin = 0, end = 0;  // positions
};

// Mean, for every query head, of the stored keys of the `top` tokens with the most mass; the concatenation is scaled to
// length 1.
//   entry  [n_heads, D] of shape.kv_dtype out
// Requires  mass covers the tokens; 1 <= top.
// Ties  the larger position.   NaN  a NaN mass ranks last; NaN keys propagate. Zero keys give a zero entry.
void build_representative(const UnitTokens& unit, const MassWindow& mass, const AttentionShape& shape, std::int32_t top,
                          std::byte* entry);

// The same without scaling: each head's own mean, for dot products (InfLLM).
void build_mean_keys(const UnitTokens& unit, const MassWindow& mass, const AttentionShape& shape, std::int32_t top,
                     std::byte* entry);

// Keys of the `top` tokens with the most mass (mean over all query heads), in token order: for each token its stored
// keys of all KV heads concatenated, scaled so that with every key repeated for the query heads of its group the length
// is 1.
//   entry  [top, n_kv_heads, D] of shape.kv_dtype out
// Requires  1 <= top <= the unit's tokens; mass covers the tokens, unless all of them are taken.   Ties, NaN  as above.
void build_key_rows(const UnitTokens& unit, const MassWindow& mass, const AttentionShape& shape, std::int32_t top,
                    std::byte* entry);

}  // namespace mneme
