// The controls, which make every other number mean something: nothing left out, nothing chosen, chosen by lot, chosen
// by the truth.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe full(const RecipeOptions&) {
  return {.name = "full", .attend = Attend::kEverything};
}

// Sinks and the last tokens. Compare it with the same dense layers as the method beside it.
Recipe window(const RecipeOptions& o) {
  const std::int32_t budget = o.budget.value_or(2048), sink = o.sink.value_or(32);
  return {.name = "window",
          .budget = budget,
          .sink = sink,
          .recent = budget - sink,
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{})};
}

// Pages by lot, drawn anew at every step.
Recipe random_units(const RecipeOptions& o) {
  return {
      .name = "random",
      .budget = o.budget.value_or(2048),
      .sink = o.sink.value_or(32),
      .recent = o.recent.value_or(128),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
      .decode = DecodeStage{.units = PageUnit{32}, .index = NoIndex{}, .score = RandomScore{}, .pool = Pool::kMeanQk}};
}

// The tokens (or pages, `unit=page:32`) with the largest true attention probability, mean over the group: the most that
// selection by KV head can reach at this budget.
Recipe oracle(const RecipeOptions& o) {
  return {.name = "oracle",
          .budget = o.budget.value_or(2048),
          .sink = o.sink.value_or(32),
          .recent = o.recent.value_or(128),
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
          .decode = DecodeStage{.units = TokenUnit{}, .index = RawKeys{}, .pool = Pool::kMeanS}};
}

}  // namespace mneme
