// SnapKV: when a prefill ends, keep its last tokens, and of the others those that the queries of the last ones attend
// most.
// Source   "SnapKV: LLM knows what you are looking for before generation" (Li et al. 2024), section 4; window 32 and
//          max pooling over 7 neighbours as in its LongBench settings.
// Differs  A  one selection per KV head, by the mean over the group's query heads before pooling (the paper selects per
//             query head, over repeated keys).
//          B  the budget is what remains of the prompt; as in the paper nothing is dropped while decoding, so an answer
//             reads its own tokens on top.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe snapkv(const RecipeOptions& o) {
  return {
      .name = "snapkv",
      .attend = Attend::kKept,
      .budget = o.budget.value_or(2048),
      .sink = o.sink.value_or(0),
      .recent = o.recent.value_or(32),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
      .rows = LastRows{32},
      .prefill_end = DropStage{.smooth = 7, .smooth_by = SmoothBy::kMax},
  };
}

}  // namespace mneme
