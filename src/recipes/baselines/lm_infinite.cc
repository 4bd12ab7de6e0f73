// LM-Infinite: first tokens at a capped distance, and the last ones.
// Source   "LM-Infinite: Zero-shot extreme length generalization for large language models" (Han et al. 2024), in the
//          setting of Q-LLM's tables: 128 sinks, 2,048 recent tokens.
// Differs  A  the distance of the sinks is the window's less one, as in InfLLM's port; the original uses the limit itself.
//          B  distances are capped from the budget on, not from the window on.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe lm_infinite(const RecipeOptions& o) {
  const std::int32_t budget = o.budget.value_or(2176), sink = o.sink.value_or(budget < 1024 ? budget / 8 : 128);
  return {.name = "lm_infinite",
          .budget = budget,
          .sink = sink,
          .recent = budget - sink,
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
          .positions = Positions::kOneAngle,
          .prefill_window = PrefillWindow{.rows = 512}};
}

}  // namespace mneme
