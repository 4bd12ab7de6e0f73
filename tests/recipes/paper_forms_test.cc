#include "src/recipes/blocks/paper_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/error.h"
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

}  // namespace
}  // namespace mneme
