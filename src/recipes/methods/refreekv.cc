// ReFreeKV: when a prefill ends, keep the first tokens and as many of the last ones as the attention of the last row
// requires, per layer. There is no budget to set.
// Source   "ReFreeKV", its pruning after prefill: the shortest prefix of the ranking (first tokens, then newest first)
//          whose attention norm is within T of the whole; norms are means over all query heads of the layer.
// Differs  A  the first tokens are excluded from the norm, as in the published code (`first_in_norm=yes`: the formula
//             read literally; a head with much attention on its sink then keeps hardly more than the sink).
//          B  `rank=mass` and `rows=N` are the paper's ablations (ranking by attention, more rows).
#include "src/recipes/recipes.h"

namespace mneme {

Recipe refreekv(const RecipeOptions& o) {
  return {
      .name = "refreekv",
      .attend = Attend::kKept,
      .budget = o.budget.value_or(2048),  // used only where `budget=N` replaces the norm
      .sink = o.sink.value_or(4),
      .recent = o.recent.value_or(1),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0, 1}),
      .norm = NormBudget{.loss = 0.01f, .first = o.sink.value_or(4)},
      .rows = LastRows{1},
      .prefill_end = DropStage{.rank = Rank::kPosition, .scope = DropScope::kLayer},
  };
}

}  // namespace mneme
