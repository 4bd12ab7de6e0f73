// Twilight: of what a selector picks, the tokens that hold a share p of the attention.
// Source   "Twilight: Adaptive attention sparsity with hierarchical top-p pruning" (Lin et al. 2025), section 4, over
//          Quest by query head.
// Differs  A  probabilities are of exact keys; the code estimates them from keys in 4 bits.
//          B  the shortest beginning of the descending order that reaches p; the code's search is bracketed by the
//             probability of token 0.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe twilight(const RecipeOptions& o) {
  return {.name = "twilight",
          .budget = o.budget.value_or(8192),
          .sink = o.sink.value_or(0),
          .recent = o.recent.value_or(0),
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0, 1}),
          .decode = DecodeStage{
              .units = PageUnit{16}, .index = Box{BoxKind::kMinMax}, .pool = Pool::kNone, .cutoff = TopP{.p = 0.85f}}};
}

}  // namespace mneme
