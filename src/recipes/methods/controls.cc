// The controls that other results are compared with: full attention, sinks and window only, random units, units by true
// attention.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe full(const RecipeOptions&) {
  return {.name = "full", .attend = Attend::kEverything};
}

// Sinks and the last tokens. Compare with a method only under the same dense layers.
Recipe window(const RecipeOptions& o) {
  const std::int32_t budget = o.budget.value_or(2048), sink = o.sink.value_or(32);
  return {.name = "window",
          .budget = budget,
          .sink = sink,
          .recent = budget - sink,
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{})};
}

// Random pages, redrawn at every step.
Recipe random_units(const RecipeOptions& o) {
  return {
      .name = "random",
      .budget = o.budget.value_or(2048),
      .sink = o.sink.value_or(32),
      .recent = o.recent.value_or(128),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
      .decode = DecodeStage{.units = PageUnit{32}, .index = NoIndex{}, .score = RandomScore{}, .pool = Pool::kMeanQk}};
}

// The tokens (or pages, `unit=page:32`) with the largest true attention probability, averaged over the group: the upper
// bound of selection per KV head at this budget.
Recipe oracle(const RecipeOptions& o) {
  return {.name = "oracle",
          .budget = o.budget.value_or(2048),
          .sink = o.sink.value_or(32),
          .recent = o.recent.value_or(128),
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
          .decode = DecodeStage{.units = TokenUnit{}, .index = RawKeys{}, .pool = Pool::kMeanS}};
}

}  // namespace mneme
