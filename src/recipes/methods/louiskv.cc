// LouisKV: clusters of the prompt and segments of the answer, selected at boundaries, where a layer's queries move, and
// kept until the next boundary.
// Source   "LouisKV: Efficient KV cache retrieval for long input-output sequences", by its summary; the k-means metric,
//          buffer, segment lengths and the first step are open there.
// Differs  A  every step attends exactly the budget: a selection is kept as a ranking, and shrinks by what enters the
//             buffer (the last unit is truncated).
//          B  a selection is reused for at most `max_reuse` steps; slow drift never falls below tau.
//          C  clusters stay in the pages; `order=unit` makes the paper's copy, each cluster contiguous.
//          D  k-means uses the distance of centred keys, so that an unusual key, such as a needle's, is not averaged
//             with keys that merely have its direction. `metric=cosine` is the spherical form.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe louiskv(const RecipeOptions& o) {
  return {
      .name = "louiskv",
      .budget = o.budget.value_or(2048),
      .sink = o.sink.value_or(16),
      .recent = o.recent.value_or(128),  // long answers: 256
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0}),
      .decode = DecodeStage{.units = {ClusterUnit{.tokens = 16, .metric = KmeansMetric::kDistance},
                                      SegmentUnit{.smallest = 8, .largest = 64}},
                            .index = Centroid{},
                            .pool = Pool::kMeanS,
                            .alpha = Alpha::kInvSqrtD,
                            .schedule = Boundary{.gate = {.tau = 0.7f}, .max_reuse = 64}},
  };
}

}  // namespace mneme
