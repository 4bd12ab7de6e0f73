#include <fmt/ranges.h>

#include <array>

#include "src/base/error.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

constexpr std::array kTable = {
    RecipeRow{"full", "attends everything", "", "", full},
    RecipeRow{"window", "sinks and the last tokens, nothing else", "Xiao et al. 2024, at original positions", "",
              window},
    RecipeRow{"random", "sinks, window, and pages at random", "", "", random_units},
    RecipeRow{"oracle", "sinks, window, and the tokens with the largest true attention", "", "", oracle},
    RecipeRow{"quest", "pages by the bound of their min-max box, at every step", "Quest (Tang et al. 2024), section 3",
              "one selection a KV head by the largest score in the group (pool=none: per query head); the open page is "
              "always attended",
              quest},
    RecipeRow{"freekv", "pages selected one step ahead, corrected where the query moved", "FreeKV, sections 3 and 4",
              "page scores scaled by 1/sqrt(D) before the softmax (alpha=1 restores the paper's form); pooled in the "
              "log domain",
              freekv},
    RecipeRow{"fier", "tokens by their keys in one bit a channel, at every step", "FIER, sections 3 and 4",
              "one selection a KV head by mean probability (pool=none: per query head); the incomplete group is always "
              "attended",
              fier},
    RecipeRow{"louiskv", "clusters of the prompt and segments of the answer, reselected where the queries turn",
              "LouisKV, by its summary",
              "every step attends exactly the budget; a selection serves max_reuse steps at most; clusters stay where "
              "their tokens are (order=unit copies them) and go by distance (metric=cosine: by direction)",
              louiskv},
    RecipeRow{
        "streaming_llm", "sinks right before the last tokens, nothing else, in prefill too",
        "StreamingLLM (Xiao et al. 2024), section 3.2",
        "sinks stand before the window by a second turn of the query, not of the keys; prefill=exact reads prompts "
        "whole, positions=absolute leaves sinks where they are",
        streaming_llm},
    RecipeRow{"refreekv",
              "what is left of the prompt: first tokens and, layer by layer, as many of the last as the norm "
              "of the last row's attention asks for",
              "ReFreeKV, section on the stopping criterion", "first tokens left out of the norm, as in its code",
              refreekv},
    RecipeRow{
        "snapkv", "what is left of the prompt: the window and the tokens that its queries attend most",
        "SnapKV (Li et al. 2024), section 4",
        "one selection per KV head by the mean of its query heads (the paper repeats keys and selects by query head)",
        snapkv},
    RecipeRow{"h2o", "what is left: the last tokens and those that were attended most, so far",
              "H2O (Zhang et al. 2023), section 4", "one selection per KV head by the sum of its query heads", h2o},
    RecipeRow{"tova", "what is left: the tokens that the last query attends most, the same in all heads of a layer",
              "TOVA (Oren et al. 2024), section 3",
              "drops when a step is done, so that the next one reads the budget and not one token more", tova},
    RecipeRow{
        "actqkv", "pages for a whole layer, in windows of prefill too, by their best keys",
        "ActQKV (Xiao et al. 2025), sections 3 and 4",
        "every key of a page is scored, the best counts (match=mean,top=4: the mean of the four most attended, as in "
        "its code); moments of queries by sequence and layer; what left the window since the last one began is "
        "attended beside the budget in prefill",
        actqkv},
};

}  // namespace

std::span<const RecipeRow> recipe_table() {
  return kTable;
}

Recipe make_recipe(std::string_view name, const RecipeOptions& options) {
  std::vector<std::string_view> names;
  for (const RecipeRow& row : kTable) {
    if (row.name == name) return row.make(options);
    names.push_back(row.name);
  }
  fail(ErrorKind::kOption, "no KV method is called '{}'; there are: {}", name, fmt::join(names, ", "));
}

}  // namespace mneme
