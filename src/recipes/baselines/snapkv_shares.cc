// PyramidKV and Ada-KV: SnapKV's choice of tokens, with budgets that differ by layer and by head.
// Source   "PyramidKV: Dynamic KV cache compression based on pyramidal information funneling" (Cai et al. 2024) and the
//          LongBench script of its code (window 8, max pooling over 7); "Ada-KV: Optimizing KV cache eviction by adaptive
//          budget allocation" (Feng et al. 2024) and its code for grouped queries (floor 0.2, window 32).
// Differs  A  one selection per KV head, by the mean over the group's query heads.
#include "src/recipes/recipes.h"

namespace mneme {

namespace {

// SnapKV with another window of observing rows, which stay, and another share of the budget.
Recipe by_share(const char* name, std::int32_t window, const Share& share, const RecipeOptions& o) {
  Recipe recipe = snapkv(o);
  recipe.name = name;
  recipe.recent = o.recent.value_or(window);
  recipe.rows = LastRows{window};
  recipe.prefill_end->share = share;
  return recipe;
}

}  // namespace

Recipe pyramidkv(const RecipeOptions& o) {
  return by_share("pyramidkv", 8, PyramidShare{.beta = 20}, o);
}

Recipe adakv(const RecipeOptions& o) {
  return by_share("adakv", 32, HeadShare{.floor = 0.2f}, o);
}

}  // namespace mneme
