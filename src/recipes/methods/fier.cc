// FIER: rank every token by its 1-bit key; attend the best exactly.
// Source   "FIER: Fine-grained and efficient KV cache retrieval for long-context LLM inference", sections 3 and 4.
// Differs  A  one selection per KV head by mean probability over the group (the paper leaves groups open);
//             `pool=none` is its per-head form.
//          B  tokens of the incomplete group have no codes and are always attended.
//          C  steps have 8 bits relative to the group's largest, so that the scan multiplies bytes
//             (src/selection/index/one_bit.h): answers and recall were those of bf16 steps, to the digit, in 160
//             questions at 4K.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe fier(const RecipeOptions& o) {
  return {
      .name = "fier",
      .budget = o.budget.value_or(2048),
      .sink = o.sink.value_or(0),
      .recent = o.recent.value_or(0),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0, 1}),
      .decode = DecodeStage{.units = TokenUnit{},
                            .index = OneBit{.group = 32, .levels = OneBitLevels::kMinMax},
                            .pool = Pool::kMeanS,
                            .alpha = Alpha::kInvSqrtD,
                            .schedule = EveryStep{}},
  };
}

}  // namespace mneme
