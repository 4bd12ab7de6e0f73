#include "src/recipes/blocks/paper_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/recipes/blocks/cpu_blocks.h"
#include "src/recipes/compile.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PaperForms, AreRecipesThatRun) {
  for (const PaperForm& form : paper_forms()) {
    const Recipe recipe = make_recipe(form.name);
    EXPECT_THAT(check_recipe(recipe), IsEmpty()) << form.name;
    EXPECT_EQ(parse_recipe(print_recipe(recipe)), recipe) << form.name;
    EXPECT_EQ(recipe, parse_recipe(std::string(form.method) + ":" + std::string(form.overrides))) << form.name;
  }
}

// Their budget may be set, and what depends on it follows; the rest is the paper's.
TEST(PaperForms, TakeABudgetAndNothingElse) {
  const Recipe h2o = make_recipe("h2o.paper", {.budget = 600});
  EXPECT_EQ(h2o.budget, 600);
  EXPECT_EQ(h2o.recent, 300);
  EXPECT_EQ(make_recipe("infllm.2k", {.budget = 4096}).budget, 4096);
  try {
    make_recipe("h2o.paper", {.budget = 600, .recent = 128});
    FAIL() << "a window of another size is no longer H2O's form";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("set its budget alone"));
  }
  EXPECT_THROW(make_recipe("h2o.paper", {.sink = 4}), Error);
  EXPECT_THROW(make_recipe("h2o.paper", {.dense_layers = {{0}}}), Error);
}

// What a device cannot run is named; what it could before, it still can.
TEST(CpuBlocks, AreNamedAndNothingElseIs) {
  constexpr MethodShape kShape{.n_layers = 4, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64};
  const auto block = [&](const char* text) { return cpu_block(*compile(parse_recipe(text), kShape)); };
  for (const char* text : {"freekv",
                           "quest:unit=page:32",
                           "fier",
                           "louiskv",
                           "snapkv",
                           "h2o",
                           "actqkv",
                           "window",
                           "oracle",
                           "freekv:gate=mass",
                           "mneme",
                           "mneme:index=sketch:8",
                           "mneme:index=moments",
                           "oracle:domain=attention",
                           "freekv:gate=mass,eps_of=attended",
                           "pyramidkv",
                           "adakv",
                           "fier:unit=page:32,page_score=lse",
                           "arkvale",
                           "clusterkv",
                           "twilight",
                           "quest:hold=4",
                           "fier:open_group=score"})
    EXPECT_EQ(block(text), nullptr) << text;
  EXPECT_STREQ(block("infllm"), "similarity=dot");
  EXPECT_STREQ(block("q_llm"), "question_in=all");
}

}  // namespace
}  // namespace mneme
