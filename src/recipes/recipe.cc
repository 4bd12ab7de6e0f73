#include "src/recipes/recipe.h"

namespace mneme {

std::int32_t unit_tokens(const Unit& unit) {
  const PageUnit* page = std::get_if<PageUnit>(&unit);
  return page == nullptr ? 1 : page->tokens;
}

NormRule norm_rule(const NormBudget& budget) {
  return {.loss = budget.loss, .sink = budget.first, .sink_in_norm = budget.first_in_norm};
}

}  // namespace mneme
