// Fields of a recipe set by KEY=VALUE, as the text of a recipe has them behind its name: `index=one_bit,unit=token`.
#pragma once

#include <string>
#include <string_view>

#include "src/recipes/recipe.h"

namespace mneme {

// Applies "key=value,key=value" in order.
// Errors  kOption: an unknown key (the message lists the known ones), an invalid value (lists the valid ones), a key of
//         a block that the recipe does not have (`tau` without a speculative schedule).
void apply_overrides(std::string_view list, Recipe& recipe);
// Whether such a list names the key.
bool overrides_set(std::string_view list, std::string_view key);

// The recipe's value of a key in the syntax of `--kv`; empty where the recipe has no such block.
std::string override_value(const Recipe& recipe, std::string_view key);
// All settings of the recipe in the syntax of `--kv`: "budget=512,sink=32,...".
std::string override_list(const Recipe& recipe);

}  // namespace mneme
