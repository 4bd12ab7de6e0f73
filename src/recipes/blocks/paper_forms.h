// Methods in the form of one paper's tables, by names like freekv.longbench: a method and overrides. Only the budget may
// be set beside them: sinks, window and dense layers are what makes the form itself.
#pragma once

#include <span>
#include <string_view>

#include "src/recipes/recipe.h"

namespace mneme {

struct PaperForm {
  std::string_view name, method, overrides;
  std::string_view where;  // the tables that have it
};
std::span<const PaperForm> paper_forms();
// Null: no form of this name.
const PaperForm* paper_form(std::string_view name);
// Errors  kOption: options beside the budget.
Recipe make_paper_form(const PaperForm& form, const RecipeOptions& options);

}  // namespace mneme
