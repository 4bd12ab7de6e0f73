// ActQKV: prompts in windows, each with units selected by its most unusual queries; answers with a number of units per
// layer that follows the spread of its scores.
// Source   "ActQKV: activation-aware query-key-value retrieval" (Xiao et al. 2025), sections 3 and 4; parts shared with
//          InfLLM (Xiao et al. 2024).
// Differs  A  moments of queries are per sequence and layer (the published code has one for all), and entropies are
//             divided by ln(units), so that lengths and layers compare.
//          B  beside its budget a row of a window attends the tokens that left its reach since the previous window:
//             they are not yet a unit and cannot be selected.
//          C  every key of a page is scored, and the best counts: the equations score keys; the four most attended ones
//             are Appendix C's, as InfLLM has them. With those a page is represented by what was attended while it was local,
//             which is not what a later question looks for: `match=mean,top=4`, the published code's form, loses 38 to
//             46 points of 100 where this loses 0 to 1 (docs/design/accuracy.md). The index is as large as the keys.
//          D  in a decode step a unit can be selected once its first token has left the window, and is then no longer
//             local: the budget is met exactly.
#include <algorithm>

#include "src/recipes/recipes.h"

namespace mneme {

// The paper's 2,048 are 64 sinks, 512 recent tokens and 46 pages, in windows of 256; smaller budgets keep the
// proportions.
Recipe actqkv(const RecipeOptions& o) {
  constexpr std::int32_t kPage = 32;
  const std::int32_t budget = o.budget.value_or(2048), recent = o.recent.value_or(budget / 4 / kPage * kPage);
  return {.name = "actqkv",
          .budget = budget,
          .sink = o.sink.value_or(budget < 1024 ? 32 : 64),
          .recent = recent,
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
          .positions = Positions::kOneAngle,
          .prefill_window =
              PrefillWindow{
                  .rows = std::clamp(recent, kPage, 256), .probe = WindowProbe::kActivation, .question_weight = 4.0f},
          .decode = DecodeStage{.units = PageUnit{kPage},
                                .index = Representative{.top = kPage, .match = KeyMatch::kBest},
                                .pool = Pool::kConcat,
                                .schedule = EveryStep{},
                                .cutoff = EntropyShare{}}};
}

}  // namespace mneme
