// The built-in recipes, one file each, and their table.
#pragma once

#include <span>
#include <string_view>

#include "src/recipes/recipe.h"

namespace mneme {

// A row of the table that `mneme methods`, docs/reference/methods.md and the contract tests use.
struct RecipeRow {
  std::string_view name;
  std::string_view summary;  // one line
  std::string_view source;   // paper, section
  std::string_view differs;  // differences from the paper, and why; empty: none known
  Recipe (*make)(const RecipeOptions&);
};

std::span<const RecipeRow> recipe_table();
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
Recipe mneme_pages(const RecipeOptions& options);
// baselines/
Recipe arkvale(const RecipeOptions& options);
Recipe clusterkv(const RecipeOptions& options);
Recipe infllm(const RecipeOptions& options);
Recipe q_llm(const RecipeOptions& options);
Recipe lm_infinite(const RecipeOptions& options);
Recipe twilight(const RecipeOptions& options);
Recipe pyramidkv(const RecipeOptions& options);
Recipe cake(const RecipeOptions& options);
Recipe raas(const RecipeOptions& options);
Recipe adakv(const RecipeOptions& options);
Recipe razor_attention(const RecipeOptions& options);
Recipe duo_attention(const RecipeOptions& options);

}  // namespace mneme
