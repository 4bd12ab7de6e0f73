#include "src/recipes/blocks/paper_forms.h"

#include <array>

#include "src/base/error.h"
#include "src/recipes/override.h"

namespace mneme {
namespace {

constexpr std::array kForms = {
    PaperForm{"freekv.longbench", "freekv", "sink=128,recent=128,tau=0.8,alpha=1", "FreeKV, LongBench v2"},
    PaperForm{"freekv.long", "freekv", "tau=0.9,alpha=1", "FreeKV, long answers"},
    PaperForm{"quest.freekv", "quest", "unit=page:32,sink=512,recent=512,dense=0", "FreeKV's tables"},
    PaperForm{"arkvale.freekv", "quest", "unit=page:32,index=cuboid,pool=meanQK,sink=512,recent=512,dense=0",
              "FreeKV's tables: nothing stays resident"},
    PaperForm{"actqkv.paper", "actqkv", "match=mean,top=4", "ActQKV; the question in prefill"},
    PaperForm{"actqkv.mean_probe", "actqkv", "match=mean,top=4,window_probe=mean", "ActQKV's ablation"},
    PaperForm{"actqkv.constant", "actqkv", "match=mean,top=4,cutoff=constant", "ActQKV's ablation"},
    PaperForm{"actqkv.neither", "actqkv", "match=mean,top=4,window_probe=mean,cutoff=constant", "ActQKV's ablation"},
    PaperForm{"actqkv.reversed", "actqkv", "match=mean,top=4,window_probe=reversed,cutoff=reversed",
              "ActQKV's ablation"},
    PaperForm{"fier.paper", "fier", "pool=none", "FIER: every query head for itself"},
    PaperForm{"fier.small", "fier", "open_group=score", "FIER, Table 2: budgets of 32 and 64"},
    PaperForm{"quest.fier", "quest", "pool=none", "FIER's tables"},
    PaperForm{"louiskv.paper", "louiskv", "metric=cosine,max_reuse=0,order=unit", "LouisKV"},
    PaperForm{"infllm.2k", "infllm", "recent=1024,budget=2176", "Q-LLM's and ActQKV's tables, printed as 2K"},
    PaperForm{"q_llm.2k", "q_llm", "recent=1024,budget=2176", "Q-LLM's tables, printed as 2K"},
    PaperForm{"streaming_llm.2k", "streaming_llm", "sink=128,budget=2176", "ActQKV's row Stream"},
    PaperForm{"h2o.paper", "h2o", "", "H2O: half of the budget recent"},
    PaperForm{"raas.paper", "raas", "sink=0,recent=0,dense=none,stamp_page=16,stamp=half,pin_prompt=yes",
              "RaaS: pages of 16, prompts stay"},
    PaperForm{"snapkv.paper", "snapkv", "", "SnapKV: the window is the rows that observe"},
    PaperForm{"tova.paper", "tova", "", "TOVA: neither sinks nor a window"},
    PaperForm{"refreekv.paper", "refreekv", "", "ReFreeKV: four first tokens, layers 0 and 1 dense"},
    PaperForm{"oracle.attention", "oracle", "domain=attention", "a unit's probability is its attention"},
};

}  // namespace

std::span<const PaperForm> paper_forms() {
  return kForms;
}

const PaperForm* paper_form(std::string_view name) {
  for (const PaperForm& form : kForms)
    if (form.name == name) return &form;
  return nullptr;
}

Recipe make_paper_form(const PaperForm& form, const RecipeOptions& options) {
  if (options.sink || options.recent || options.dense_layers)
    fail(ErrorKind::kOption,
         "'{}' is a paper's form, with sinks, window and dense layers of its own: set its budget alone, or take '{}'",
         form.name, form.method);
  Recipe recipe = make_recipe(form.method, {.budget = options.budget});
  apply_overrides(form.overrides, recipe);
  recipe.budget = options.budget.value_or(recipe.budget);
  return recipe;
}

}  // namespace mneme
