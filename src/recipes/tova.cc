// TOVA: at every step drop the token that the step's query attends least, whichever it is.
// Source   "Transformers are multi-state RNNs" (Oren et al. 2024), section 3.
// Differs  A  attention is the mean over all query heads of the layer, and so is the choice, as in the paper; tokens
// are
//             dropped when the step is done, so that the next one reads `budget` tokens with its own among them (the
//             published code reads one more).
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
