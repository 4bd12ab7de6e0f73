// ClusterKV: clusters of a prompt's keys by direction, a cluster of 80 tokens on average, selected by every query head.
// Source   "ClusterKV: Manipulating LLM KV cache in semantic space for recallable compression" (Liu et al. 2024), section
//          4: 16 sinks, spherical k-means of the whole prompt, the last cluster truncated.
// Differs  A  an answer goes by segments of 80 tokens, where the paper clusters every 320 tokens of it by four.
//          B  keys are centred before k-means.
//          C  the published 1,024 tokens, and 320 of the answer, which the paper has on top.
#include <algorithm>

#include "src/recipes/recipes.h"

namespace mneme {

Recipe clusterkv(const RecipeOptions& o) {
  const std::int32_t budget = o.budget.value_or(1344);
  return {.name = "clusterkv",
          .budget = budget,
          .sink = o.sink.value_or(16),
          .recent = o.recent.value_or(std::clamp(budget / 4, 80, 320)),
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0, 1}),
          .decode = DecodeStage{
              .units = {ClusterUnit{.tokens = 80, .block = 65535, .iterations = 20, .metric = KmeansMetric::kCosine},
                        SegmentUnit{.smallest = 80, .largest = 80}},
              .index = Centroid{},
              .pool = Pool::kNone}};
}

}  // namespace mneme
