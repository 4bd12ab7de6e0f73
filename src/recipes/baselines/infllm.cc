// InfLLM: blocks of the prompt by their most attended keys, in windows of prefill and in answers, for a whole layer; and
// Q-LLM, which adds a term for the prompt's question.
// Source   "InfLLM: Training-free long-context extrapolation for LLMs with an efficient context memory" (Xiao et al.
//          2024) and its code; "Q-LLM: QuickLLaMA" (Li et al. 2024) and its code, in the setting that tables print as
//          "2K": 128 sinks, 8 blocks of 128, and 1,024 recent tokens (`recent=1024,budget=2176`; 896 of 2,048 here).
// Differs  A  Q-LLM: the question's vector is set at the question's last token; the code sets it when the first blocks
//             are filed, from the first 8,192 tokens.
//          B  beside its budget a row of a window attends the tokens that left its reach since the previous window.
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

Recipe by_blocks(const char* name, const RecipeOptions& o, float question_weight) {
  const std::int32_t budget = o.budget.value_or(2048);
  // The paper's block of 128; smaller budgets have about 8 blocks too.
  const std::int32_t block = budget >= 2048 ? 128 : budget >= 1024 ? 64 : budget >= 512 ? 32 : 8;
  return {
      .name = name,
      .budget = budget,
      .sink = o.sink.value_or(block),
      .recent = o.recent.value_or((budget / 2 - block) / block * block),
      .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{}),
      .positions = Positions::kOneAngle,
      .prefill_window = PrefillWindow{.rows = 512,
                                      .probe = WindowProbe::kMean,
                                      .question_weight = question_weight,
                                      .question_in_answers = question_weight != 0},
      .decode = DecodeStage{.units = PageUnit{block},
                            .index = Representative{.top = 4, .match = KeyMatch::kMean, .similarity = Similarity::kDot},
                            .pool = Pool::kConcat}};
}

}  // namespace

Recipe infllm(const RecipeOptions& o) {
  return by_blocks("infllm", o, 0.0f);
}
Recipe q_llm(const RecipeOptions& o) {
  return by_blocks("q_llm", o, 4.0f);  // Mistral: 1
}

}  // namespace mneme
