// TOVA: at every step drop the token that the step's query attends least.
// Source   "Transformers are multi-state RNNs" (Oren et al. 2024), section 3.
// Differs  A  attention, and with it the drop, is averaged over all query heads of the layer, as in the paper; tokens
//             are dropped after the step, so that the next one reads `budget` tokens including its own (the published
//             code reads one more).
#include "src/recipes/recipes.h"

namespace mneme {

Recipe tova(const RecipeOptions& o) {
  return {
      .name = "tova",
      .attend = Attend::kKept,
      .budget = o.budget.value_or(2048),
      .sink = o.sink.value_or(0),
      .recent = o.recent.value_or(0),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
      .rows = LastRows{1},
      .prefill_end = DropStage{.scope = DropScope::kLayer, .when = DropWhen::kOverBudget},
  };
}

}  // namespace mneme
