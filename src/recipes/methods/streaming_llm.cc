// StreamingLLM: the first tokens and the last ones, as if those in between had never existed.
// Source   "Efficient streaming language models with attention sinks" (Xiao et al. 2024), section 3.2.
// Differs  A  keys are stored post-RoPE at their own positions; for the sinks the query is rotated again, to its
//             position in a cache that has only the kept tokens: the same dot products.
//          B  prompts are read 256 rows at a time under the mask of token-by-token reading; `prefill=exact` reads them
//             whole and then drops, as other published codes do.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe streaming_llm(const RecipeOptions& o) {
  const std::int32_t budget = o.budget.value_or(2048), sink = o.sink.value_or(4);
  return {.name = "streaming_llm",
          .budget = budget,
          .sink = sink,
          .recent = budget - sink,
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
          .positions = Positions::kInCache,
          .prefill_window = PrefillWindow{.rows = 256}};
}

}  // namespace mneme
