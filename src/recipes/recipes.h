// The recipes we ship, one file each, and the table of them.
#pragma once

#include <span>
#include <string_view>

#include "src/recipes/recipe.h"

namespace mneme {

// What a caller may choose without knowing the method; absent: the recipe's own default.
struct RecipeOptions {
  std::optional<std::int32_t> budget, sink, recent;
  std::optional<std::vector<std::int32_t>> dense_layers;
};

// One row of the table: `mneme methods`, docs/methods.md and the contract tests are made from it.
struct RecipeRow {
  std::string_view name;
  std::string_view summary;  // one line
  std::string_view source;   // paper, section
  std::string_view differs;  // from the paper, and why; empty: nothing known
  Recipe (*make)(const RecipeOptions&);
};

std::span<const RecipeRow> recipe_table();
// Errors  kOption: no such method (the known ones are named).
Recipe make_recipe(std::string_view name, const RecipeOptions& options);

Recipe full(const RecipeOptions& options);
Recipe window(const RecipeOptions& options);
Recipe random_units(const RecipeOptions& options);
Recipe oracle(const RecipeOptions& options);
Recipe quest(const RecipeOptions& options);
Recipe freekv(const RecipeOptions& options);
Recipe fier(const RecipeOptions& options);
Recipe louiskv(const RecipeOptions& options);
Recipe streaming_llm(const RecipeOptions& options);
Recipe refreekv(const RecipeOptions& options);
Recipe snapkv(const RecipeOptions& options);
Recipe h2o(const RecipeOptions& options);
Recipe tova(const RecipeOptions& options);
Recipe actqkv(const RecipeOptions& options);

}  // namespace mneme
