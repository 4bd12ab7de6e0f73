// Quest: at every step, the pages whose min-max box bounds the largest score for the current query.
// Source   "Quest: Query-aware sparsity for efficient long-context LLM inference" (Tang et al. 2024), section 3.
// Differs  A  one selection per KV head, by the largest score of the group's heads (the paper has no groups);
//             `pool=none` lets every query head select for itself.
//          B  the last, partly filled page is always attended and not scored: the kernel path of the published code.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe quest(const RecipeOptions& o) {
  return {
      .name = "quest",
      .budget = o.budget.value_or(2048),
      .sink = o.sink.value_or(0),      // sinks win by score
      .recent = o.recent.value_or(0),  // the open page only
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0, 1}),
      .decode =
          DecodeStage{
              .units = PageUnit{16}, .index = Box{BoxKind::kMinMax}, .pool = Pool::kMaxQk, .schedule = EveryStep{}},
  };
}

}  // namespace mneme
