// Default sinks and window that fit a small budget.
#pragma once

#include <string>

#include "src/recipes/recipe.h"

namespace mneme {

// Which of the two a caller set; the other is the method's default.
struct RegionGiven {
  bool sink = false, recent = false;
};

// Shrinks default sinks and the default window, in proportion, to half of the budget where they take more than that
// (of a method that drops: more than all of it), and rounds them down to whole units. What a caller set stays as it is
// and counts off the budget first. A recipe without a budget of its own (full attention, budget=norm) is left alone.
//
// Returns  one sentence that names what changed, or "".
std::string fit_defaults(const RegionGiven& given, Recipe& recipe);

}  // namespace mneme
