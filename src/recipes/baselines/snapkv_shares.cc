// PyramidKV and Ada-KV: SnapKV's choice of tokens, with budgets that differ by layer and by head.
// Source   "PyramidKV: Dynamic KV cache compression based on pyramidal information funneling" (Cai et al. 2024) and the
//          LongBench script of its code (window 8, max pooling over 7); "Ada-KV: Optimizing KV cache eviction by adaptive
//          budget allocation" (Feng et al. 2024) and its code for grouped queries (floor 0.2, window 32).
// Differs  A  one selection per KV head, by the mean over the group's query heads.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe pyramidkv(const RecipeOptions& o) {
  return {.name = "pyramidkv",
          .attend = Attend::kKept,
          .budget = o.budget.value_or(2048),
          .sink = o.sink.value_or(0),
          .recent = o.recent.value_or(8),
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
          .rows = LastRows{8},
          .prefill_end = DropStage{.smooth = 7, .smooth_by = SmoothBy::kMax, .share = PyramidShare{.beta = 20}}};
}

Recipe adakv(const RecipeOptions& o) {
  return {.name = "adakv",
          .attend = Attend::kKept,
          .budget = o.budget.value_or(2048),
          .sink = o.sink.value_or(0),
          .recent = o.recent.value_or(32),
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
          .rows = LastRows{32},
          .prefill_end = DropStage{.smooth = 7, .smooth_by = SmoothBy::kMax, .share = HeadShare{.floor = 0.2f}}};
}

}  // namespace mneme
