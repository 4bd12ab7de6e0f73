// Overriding any block of a recipe by KEY=VALUE, as `--kv` gives it: `index=one_bit,unit=token`.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "src/recipes/recipe.h"

namespace mneme {

// One key that may be overridden, for help and documentation.
struct OverrideKey {
  std::string_view key;
  std::string_view values;  // what may follow: "page:N | token"
  std::string_view meaning;
};
std::span<const OverrideKey> override_keys();

// Applies "key=value,key=value" in order.
// Errors  kOption: unknown key (the known ones are named), value that does not fit (what would is named), key of a
// block that the
//         recipe does not have (`tau` without a speculative schedule).
void apply_overrides(std::string_view list, Recipe& recipe);

// The recipe's value of a key, as `--kv` would take it; empty where the recipe has no such block.
std::string override_value(const Recipe& recipe, std::string_view key);
// All that the recipe has, as `--kv` would take it: "budget=512,sink=32,...".
std::string override_list(const Recipe& recipe);

}  // namespace mneme
