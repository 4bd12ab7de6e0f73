// ClusterKV: clusters of a prompt's keys by direction, a cluster of 80 tokens on average, selected by every query head.
// Source   "ClusterKV: Manipulating LLM KV cache in semantic space for recallable compression" (Liu et al. 2024), section
//          4: 16 sinks, spherical k-means of the whole prompt, the last cluster truncated.
// Differs  A  keys are centred before k-means.
//          B  the published 1,024 tokens, and 320 of the answer, which the paper has on top: every 320 tokens of it become
//             four clusters when they leave the window.
#include <algorithm>

#include "src/recipes/recipes.h"

namespace mneme {

Recipe clusterkv(const RecipeOptions& o) {
  const std::int32_t budget = o.budget.value_or(1344);
  const std::int32_t lot =
      std::clamp(budget / 4 / 80 * 80, 80, 320);  // tokens of an answer that are clustered together
  return {.name = "clusterkv",
          .budget = budget,
          .sink = o.sink.value_or(16),
          .recent = o.recent.value_or(lot),
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0, 1}),
          .decode = DecodeStage{
              .units = {ClusterUnit{.tokens = 80, .block = 65535, .iterations = 20, .metric = KmeansMetric::kCosine},
                        SegmentUnit{.smallest = lot, .largest = lot, .clustered = true}},
              .index = Centroid{},
              .pool = Pool::kNone}};
}

}  // namespace mneme
