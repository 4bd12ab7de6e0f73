// FreeKV: select with the previous step's query concurrently with the current step; correct the KV heads whose query
// moved.
// Source   "FreeKV: Boosting KV cache retrieval for efficient LLM inference", sections 3 and 4.
// Differs  A  page scores are scaled by 1/sqrt(D) before the softmax (the paper leaves the scale open); `alpha=1`
//             restores it.
//          B  the mean of softmaxes is taken in the log domain: the same order, without underflow.
//          C  min-max boxes and softmax pooling for both accuracy and speed (the published speed code uses box means
//             and raw scores).
#include "src/recipes/recipes.h"

namespace mneme {

Recipe freekv(const RecipeOptions& o) {
  return {
      .name = "freekv",
      .budget = o.budget.value_or(2048),
      .sink = o.sink.value_or(512),  // LongBench v2 in the paper: 128
      .recent = o.recent.value_or(512),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0}),
      .decode = DecodeStage{.units = PageUnit{32},
                            .index = Box{BoxKind::kMinMax},
                            .pool = Pool::kMeanS,
                            .alpha = Alpha::kInvSqrtD,
                            .schedule = Speculative{CosineGate{.tau = 0.8f}}},  // 0.9 for long generation
  };
}

}  // namespace mneme
