#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "src/base/error.h"
#include "src/base/most_like.h"
#include "src/recipes/blocks/paper_forms.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

constexpr std::array kTable = {
    RecipeRow{"full", "attends everything", "", "", full},
    RecipeRow{"window", "sinks and the last tokens, nothing else", "Xiao et al. 2024, at original positions", "",
              window},
    RecipeRow{"random", "sinks, window, and pages at random", "", "", random_units},
    RecipeRow{"oracle", "sinks, window, and the tokens with the largest true attention", "", "", oracle},
    RecipeRow{"mneme", "pages by a sketch of keys, one step ahead, corrected where attention is missing", "", "",
              mneme_pages},
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
    RecipeRow{"refreekv", "what is left of the prompt: first tokens, and last ones by the attention's norm",
              "ReFreeKV, section on the stopping criterion", "first tokens left out of the norm, as in its code",
              refreekv},
    RecipeRow{
        "snapkv", "what is left of the prompt: the window and the tokens that its queries attend most",
        "SnapKV (Li et al. 2024), section 4",
        "one selection per KV head by the mean of its query heads (the paper repeats keys and selects by query head)",
        snapkv},
    RecipeRow{"h2o", "what is left: the last tokens and those that were attended most, so far",
              "H2O (Zhang et al. 2023), section 4", "one selection per KV head by the sum of its query heads", h2o},
    RecipeRow{"tova", "what is left: tokens that the last query attends most, the same in all heads",
              "TOVA (Oren et al. 2024), section 3",
              "drops when a step is done, so that the next one reads the budget and not one token more", tova},
    RecipeRow{
        "actqkv", "pages for a whole layer, in windows of prefill too, by their best keys",
        "ActQKV (Xiao et al. 2025), sections 3 and 4",
        "every key of a page is scored, the best counts (match=mean,top=4: the mean of the four most attended, as in "
        "its code); moments of queries by sequence and layer; what left the window since the last one began is "
        "attended beside the budget in prefill",
        actqkv},
    RecipeRow{"arkvale", "pages by cuboids for a whole layer, which stay until better ones need their room",
              "ArkVale (Chen et al. 2024), and its code",
              "the page that is being written is attended beside the window", arkvale},
    RecipeRow{"clusterkv", "clusters of the prompt by direction, by query head, at every step",
              "ClusterKV (Liu et al. 2024), section 4",
              "every 320 tokens of an answer become clusters when they leave the window; keys are centred", clusterkv},
    RecipeRow{"infllm", "blocks for a whole layer, in prefill too, by the mean of their most attended keys",
              "InfLLM (Xiao et al. 2024), and its code",
              "what left the window since the last one began is attended beside the budget in prefill", infllm},
    RecipeRow{"q_llm", "as infllm, and by the prompt's question", "Q-LLM (Li et al. 2024), and its code",
              "as infllm; the question's vector is set at its last token", q_llm},
    RecipeRow{"lm_infinite", "sinks at a capped distance and the last tokens, in prefill too",
              "LM-Infinite (Han et al. 2024)", "the cap is the window less one, and holds from the budget on",
              lm_infinite},
    RecipeRow{"twilight", "of the pages that a box picks, the tokens that hold a share p of the attention",
              "Twilight (Lin et al. 2025), section 4", "probabilities are of exact keys, not of keys in 4 bits",
              twilight},
    RecipeRow{"pyramidkv", "snapkv with less in every layer than in the one below",
              "PyramidKV (Cai et al. 2024), and its code", "one selection per KV head by the mean of its query heads",
              pyramidkv},
    RecipeRow{"adakv", "snapkv with more in heads where a layer's largest masses fall",
              "Ada-KV (Feng et al. 2024), and its code", "one selection per KV head by the mean of its query heads",
              adakv},
    RecipeRow{"cake", "snapkv by mean and variance of attention, more in layers where it is spread",
              "CAKE (Qin et al. 2025), and its code",
              "one selection per KV head by the mean of its query heads; layers drop once all of them are read", cake},
    RecipeRow{"raas", "what is left: pages of tokens, the one gone that no step attended for longest",
              "RaaS (Hu et al. 2025), section 3; FreeKV's settings",
              "a page's score is its share of the step's attention, not the bound of a box", raas},
    RecipeRow{"razor_attention", "everything in the heads of full_heads=FILE, sinks and window in the others",
              "RazorAttention (Tang et al. 2024)", "no compensation token; without a file no head is full",
              razor_attention},
    RecipeRow{"duo_attention", "everything in the heads of full_heads=FILE, sinks and window in the others",
              "DuoAttention (Xiao et al. 2024)", "prompts attend everything; without a file no head is full",
              duo_attention},
};

}  // namespace

std::span<const RecipeRow> recipe_table() {
  return kTable;
}

Recipe make_recipe(std::string_view name, const RecipeOptions& options) {
  if (const PaperForm* form = paper_form(name)) return make_paper_form(*form, options);
  std::vector<std::string_view> names, forms;
  for (const RecipeRow& row : kTable) {
    if (row.name == name) return row.make(options);
    names.push_back(row.name);
  }
  for (const PaperForm& form : paper_forms()) forms.push_back(form.name);
  std::string_view like = most_like(name, names);
  if (like.empty()) like = most_like(name, forms);
  if (!like.empty()) fail(ErrorKind::kOption, "no KV method is called '{}': did you mean '{}'?", name, like);
  fail(ErrorKind::kOption, "no KV method is called '{}'; there are: {}", name, fmt::join(names, ", "));
}

}  // namespace mneme
