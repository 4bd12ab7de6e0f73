// ArkVale: pages by cuboids, one selection for all heads of a layer; pages stay until better ones need their room.
// Source   "ArkVale: Efficient generative LLM inference with recallable key-value eviction" (Chen et al. 2024), and its
//          code: 32-token pages, one sink page, two of the window, a quarter of the resident pages selected at a step.
// Differs  A  the page that is being written is attended beside the window; the code has a page of its own for it.
#include <algorithm>

#include "src/recipes/recipes.h"

namespace mneme {

// The code selects 32 of 128 resident pages, of which one is a sink and one is the window's.
Recipe arkvale(const RecipeOptions& o) {
  constexpr std::int32_t kPage = 32;
  const std::int32_t budget = o.budget.value_or(4096);
  return {.name = "arkvale",
          .budget = budget,
          .sink = o.sink.value_or(kPage),
          .recent = o.recent.value_or(2 * kPage),
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0, 1}),
          .decode = DecodeStage{.units = PageUnit{kPage},
                                .index = Box{BoxKind::kCuboidMean},
                                .pool = Pool::kMeanQk,
                                .select = SelectScope::kLayer,
                                .hold = std::max(1, budget / kPage / 4 - 2)}};
}

}  // namespace mneme
