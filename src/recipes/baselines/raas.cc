// RaaS: when a step is over the budget, drop the page that no step has attended for the longest time.
// Source   "Efficient long-decoding inference with reasoning-aware attention sparsity" (RaaS, Hu et al. 2025), section
//          3; page, regions and the prompt that is cut first as in FreeKV's tables. raas.paper has the paper's own.
// Differs  A  a page's score is its share of the step's attention, which the step has computed anyway, not the bound of a
//             box of its keys.
//          B  one decision per KV head, by the mean over its query heads.
//          C  with pin_prompt=yes pages of a prompt are dropped when no others are left (the paper's prompts always fit).
#include "src/recipes/recipes.h"

namespace mneme {

Recipe raas(const RecipeOptions& o) {
  return {
      .name = "raas",
      .attend = Attend::kKept,
      .budget = o.budget.value_or(2048),
      .sink = o.sink.value_or(512),
      .recent = o.recent.value_or(512),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0}),
      .rows = LastRows{1},
      .prefill_end = DropStage{.rank = Rank::kStamp, .stamps = {.page = 32}, .when = DropWhen::kOverBudget},
  };
}

}  // namespace mneme
