// H2O: keep the last tokens and the heavy hitters, the tokens with the most attention from all rows so far.
// Source   "H2O: Heavy-hitter oracle for efficient generative inference of large language models" (Zhang et al. 2023),
//          section 4; half of the budget recent, half heavy hitters.
// Differs  A  one selection per KV head, by the sum over the group's query heads.
//          B  every prompt row is counted, exactly: about one more pass of scores over the prefill.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe h2o(const RecipeOptions& o) {
  const std::int32_t budget = o.budget.value_or(2048);
  return {
      .name = "h2o",
      .attend = Attend::kKept,
      .budget = budget,
      .sink = o.sink.value_or(0),
      .recent = o.recent.value_or(budget / 2),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
      .rows = AllRows{},
      .prefill_end = DropStage{.when = DropWhen::kOverBudget},
  };
}

}  // namespace mneme
