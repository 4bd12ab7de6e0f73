// RazorAttention and DuoAttention: some KV heads attend everything, the others sinks and a window.
// Source   "RazorAttention: Efficient KV cache compression through retrieval heads" (Tang et al. 2024), in the setting of
//          FreeKV's tables (512 + 512); "DuoAttention: Efficient long-context LLM inference with retrieval and streaming
//          heads" (Xiao et al. 2024), its published 128 + 256.
// Differs  A  without `full_heads=FILE` no head is full: the files are the papers', made for a model.
//          B  RazorAttention: no compensation token, as in FreeKV's comparison.
//          C  prompts attend everything; DuoAttention's streaming heads read theirs under the mask too.
#include <algorithm>

#include "src/recipes/recipes.h"

namespace mneme {
namespace {

Recipe by_heads(const char* name, std::int32_t budget, std::int32_t sink, const RecipeOptions& o) {
  return {.name = name,
          .budget = budget,
          .sink = sink,
          .recent = budget - sink,
          .dense_layers = o.dense_layers.value_or(std::vector<std::int32_t>{})};
}

}  // namespace

Recipe razor_attention(const RecipeOptions& o) {
  const std::int32_t budget = o.budget.value_or(1024);
  return by_heads("razor_attention", budget, o.sink.value_or(budget / 2), o);
}
Recipe duo_attention(const RecipeOptions& o) {
  const std::int32_t budget = o.budget.value_or(384);
  return by_heads("duo_attention", budget, o.sink.value_or(budget / 3), o);
}

}  // namespace mneme
