// Mneme: selects pages by a sketch of their keys, speculatively; corrects the KV heads whose speculative selection lacks
// too much attention mass.
// Source   this project: docs/design/selector.md.
#include "src/recipes/recipes.h"

namespace mneme {

Recipe mneme_pages(const RecipeOptions& o) {
  return {
      .name = "mneme",
      .budget = o.budget.value_or(2048),
      .sink = o.sink.value_or(32),
      .recent = o.recent.value_or(128),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{0}),
      .decode = DecodeStage{.units = PageUnit{32},
                            .index = Sketch{16},
                            .pool = Pool::kMeanS,
                            .domain = Domain::kAttention,
                            .schedule = Speculative{MassGate{.eps = 0.2f, .of_attended = true}}},
  };
}

}  // namespace mneme
