// How the layers and heads of a model share what a drop keeps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mneme/recipe.h"

namespace mneme {

// Layer `number` of n_layers that drop, counted from below.
struct LayerPlace {
  std::int32_t number = 0, n_layers = 1;
};

// Tokens that a layer keeps of n, the last `recent` included, with `budget` a layer on average: from hi in the first
// layer to lo in the last in equal steps, hi + lo = 2 b, lo = b / beta of b = budget - recent ranked tokens; all
// divisions rounded down. Up to 2 b tokens every layer keeps the budget.
// Source  PyramidKV (Cai et al. 2024), its code. Requires  beta >= 1.
std::int32_t pyramid_keep(const PyramidShare& share, std::int32_t budget, std::int32_t recent, std::int32_t n,
                          const LayerPlace& place);

// Tokens that each layer keeps of `total` by its preference: total P / sum P rounded down, at most its cap; what caps
// leave over goes evenly to the layers below theirs, a remainder to the lowest of them, and so does what rounding left.
// Preferences that are not finite, or all 0, share evenly.
//   preference  [layers]  at least 0;   cap  [layers]
// Source  CAKE (Qin et al. 2025), its code.
std::vector<std::int32_t> preference_keeps(std::span<const double> preference, std::span<const std::int32_t> cap,
                                           std::int64_t total);

// Ranked tokens that each head keeps. With b a head on average, c_m of the layer's heads * b largest scores fall to
// head m, which keeps round((1 - floor) c_m + [floor b]), half to even; exact: the [floor b] best of every head, then
// the largest of the others, heads * b in all.
//   scores  by head: of the tokens that are ranked
// Ties  the later token, and between heads the later head.   Source  Ada-KV (Feng et al. 2024), its code; exact:
// kvpress.
std::vector<std::int32_t> head_keeps(const HeadShare& share, std::span<const std::span<const float>> scores,
                                     std::int32_t b);

}  // namespace mneme
