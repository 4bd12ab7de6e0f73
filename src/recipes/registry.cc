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
    RecipeRow{"random", "sinks, window, and pages by lot", "", "", random_units},
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
    RecipeRow{"louiskv", "clusters of the prompt and segments of the answer, selected anew where the queries turn",
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
