// Additions of the library to the public Recipe (include/mneme/recipe.h).
#pragma once

#include <cstdint>

#include "mneme/recipe.h"
#include "src/selection/mass/keep_rule.h"

namespace mneme {

// Tokens of every unit; 1 where units are lists (clusters, segments).
std::int32_t unit_tokens(const Unit& unit);

NormRule norm_rule(const NormBudget& budget);

}  // namespace mneme
