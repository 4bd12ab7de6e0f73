// The value that a gate compares with tau.
#pragma once

#include <cstdint>

#include "src/recipes/recipe.h"

namespace mneme {

// Cosines of a group's queries with those of another step, pooled over the group.
//
//   q, before  [group, D]  f32
//
// NaN  any NaN among the cosines gives NaN.
float pooled_cosine(GatePool pool, const float* q, const float* before, std::int32_t group, std::int32_t head_dim);

}  // namespace mneme
