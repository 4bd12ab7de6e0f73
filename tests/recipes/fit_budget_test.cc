// Defaults never contradict each other: whatever budget a caller sets, default sinks and window leave room to select.
#include "src/recipes/fit_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/recipes/compile.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr MethodShape kShape{.n_layers = 8, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64};

TEST(DefaultsFitTheBudget, OfEveryMethodAtEveryBudget) {
  for (const RecipeRow& row : recipe_table())
    for (const std::int32_t budget : {192, 200, 256, 333, 512, 1000, 1024, 1056, 2048, 4096}) {
      Recipe r = make_recipe(row.name, {.budget = budget});
      fit_defaults({}, r);
      EXPECT_THAT(check(r, kShape), IsEmpty()) << row.name << ", budget " << budget;
      EXPECT_EQ(r.decode.has_value() && r.sink + r.recent > budget / 2, false) << row.name << ", budget " << budget;
    }
}

TEST(DefaultsFitTheBudget, OfABudgetThatAnOverrideSets) {
  for (const char* name : {"freekv", "h2o", "actqkv", "oracle", "streaming_llm", "snapkv"}) {
    Recipe r = make_recipe(name, {});
    apply_overrides("budget=256", r);
    fit_defaults({}, r);
    EXPECT_THAT(check(r, kShape), IsEmpty()) << name;
  }
}

TEST(DefaultsFitTheBudget, InProportionAndByWholeUnits) {
  Recipe r = make_recipe("freekv", {.budget = 512});
  EXPECT_THAT(fit_defaults({}, r), HasSubstr("freekv: the budget of 512 tokens shrinks the default sinks and window "
                                             "from 512 + 512 to 128 + 128"));
  EXPECT_EQ(r.sink, 128);
  EXPECT_EQ(r.recent, 128);
  Recipe odd = make_recipe("freekv", {.budget = 300});
  fit_defaults({}, odd);
  EXPECT_EQ(odd.sink, 64);
  EXPECT_EQ(odd.recent, 64);
}

TEST(DefaultsFitTheBudget, AndStayWhereTheyFit) {
  for (const RecipeRow& row : recipe_table()) {
    const Recipe before = make_recipe(row.name, {});
    Recipe r = before;
    EXPECT_EQ(fit_defaults({}, r), "") << row.name;
    EXPECT_EQ(r, before) << row.name;
  }
}

TEST(DefaultsFitTheBudget, WhatTheCallerSetStays) {
  Recipe r = make_recipe("freekv", {.budget = 512, .sink = 384});
  fit_defaults({.sink = true}, r);
  EXPECT_EQ(r.sink, 384);
  EXPECT_EQ(r.recent, 64) << "half of the 128 that the sinks leave";
  Recipe both = make_recipe("freekv", {.budget = 512, .sink = 512, .recent = 512});
  EXPECT_EQ(fit_defaults({.sink = true, .recent = true}, both), "");
  EXPECT_THAT(check(both, kShape), testing::Not(IsEmpty()));
}

// What drops token by token may keep sinks and window alone.
TEST(DefaultsFitTheBudget, DefaultsThatJustFitStay) {
  for (const char* name : {"snapkv", "h2o"}) {
    Recipe r = make_recipe(name, {.budget = 512});
    r.budget = r.sink + r.recent;
    const Recipe before = r;
    EXPECT_EQ(fit_defaults({}, r), "") << name;
    EXPECT_EQ(r, before) << name;
    --r.budget;
    EXPECT_THAT(fit_defaults({}, r), HasSubstr("shrinks the default")) << name;
    EXPECT_LE(r.sink + r.recent, r.budget) << name;
  }
}

}  // namespace
}  // namespace mneme
