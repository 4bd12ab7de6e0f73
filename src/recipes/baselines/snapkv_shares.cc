// PyramidKV, Ada-KV and CAKE: SnapKV's choice of tokens, with budgets that differ by layer and by head; CAKE's also by how
// much attention changes from row to row.
// Source   "PyramidKV: Dynamic KV cache compression based on pyramidal information funneling" (Cai et al. 2024) and the
//          LongBench script of its code (window 8, max pooling over 7); "Ada-KV: Optimizing KV cache eviction by adaptive
//          budget allocation" (Feng et al. 2024) and its code for grouped queries (floor 0.2, window 32); "CAKE: Cascading and
//          adaptive KV cache eviction with layer preferences" (Qin et al. 2025) and its code (gamma 200, mean pooling
//          over 5).
// Differs  A  one selection per KV head, by the mean over the group's query heads.
//          B  cake: layers drop once all have been read, not while the prompt is read layer by layer; as snapkv, nothing
//             is dropped while decoding; a prompt of up to the budget is kept whole (its code: and the window).
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

Recipe cake(const RecipeOptions& o) {
  Recipe recipe = by_share("cake", 32, PreferenceShare{}, o);
  recipe.prefill_end->rank = Rank::kMassVariance;
  recipe.prefill_end->smooth = 5;
  recipe.prefill_end->smooth_by = SmoothBy::kMean;
  return recipe;
}

}  // namespace mneme
