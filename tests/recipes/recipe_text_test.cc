// Recipes as values of the public API: printed, parsed, checked without a model.
#include "mneme/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "src/recipes/describe.h"
#include "src/recipes/fields.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/error_message.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename F>
std::string refusal(const F& f) {
  return error_message(ErrorKind::kOption, f);
}

// A value of every kind that each key takes, or is likely to meet.
const std::vector<std::pair<std::string_view, std::vector<std::string_view>>> kValues = {
    {"budget", {"512", "norm"}},
    {"sink", {"0", "32"}},
    {"recent", {"0", "64"}},
    {"dense", {"none", "0+3"}},
    {"prefill", {"exact", "window:64"}},
    {"positions", {"absolute", "in_cache", "one_angle"}},
    {"loss", {"0.05"}},
    {"norm_first", {"8"}},
    {"first_in_norm", {"yes", "no"}},
    {"rows", {"3", "all"}},
    {"drop", {"prefill_end", "over_budget"}},
    {"rank", {"mass", "position", "mass_var", "stamp"}},
    {"smooth", {"none", "mean:5", "max:7"}},
    {"scope", {"kv_head", "layer"}},
    {"unit", {"token", "page:32", "page:7", "cluster:24"}},
    {"segment", {"4-48"}},
    {"block", {"4096"}},
    {"iterations", {"3"}},
    {"metric", {"cosine", "distance"}},
    {"order", {"token", "unit"}},
    {"index",
     {"none", "keys", "box", "cuboid", "one_bit", "representative", "centroid", "centroids:3", "sketch:5", "moments"}},
    {"group", {"32", "128"}},
    {"levels", {"minmax", "meanabs"}},
    {"by_size", {"yes", "no"}},
    {"pool", {"none", "maxQ", "meanQK", "meanS", "concat"}},
    {"top", {"2"}},
    {"match", {"mean", "best"}},
    {"window_probe", {"activation", "mean", "reversed"}},
    {"question_weight", {"0", "1.5"}},
    {"cutoff", {"constant", "entropy", "reversed", "top_p:0.5"}},
    {"cutoff_in", {"decode", "all"}},
    {"alpha", {"inv_sqrt_d", "1"}},
    {"schedule", {"every_step", "speculative", "boundary"}},
    {"gate", {"cosine", "mass"}},
    {"tau", {"-1", "0.65", "1.5"}},
    {"eps", {"0.02", "-1"}},
    {"gate_pool", {"mean", "max", "any"}},
    {"reference", {"previous", "last_retrieval"}},
    {"max_reuse", {"0", "12"}},
    {"seed", {"18446744073709551615"}},
    {"domain", {"attention", "candidates"}},
    {"eps_of", {"attended", "domain"}},
    {"answer", {"clusters", "segments"}},
    {"open_group", {"score", "attend"}},
    {"similarity", {"dot", "cosine"}},
    {"question_in", {"all", "prefill"}},
    {"select", {"layer", "kv_head"}},
    {"hold", {"3", "0"}},
    {"gamma", {"7", "200"}},
    {"stamp_page", {"16"}},
    {"stamp", {"half", "0.001"}},
    {"pin_prompt", {"yes", "no"}},
    {"share", {"pyramid:7", "heads:0.25", "heads_safe:0.5", "preference:1.5-0.25", "even"}},
    {"full_heads", {"none"}},
};

bool apply(Recipe& recipe, std::string_view key, std::string_view value) {
  try {
    apply_overrides(std::string(key) + '=' + std::string(value), recipe);
    return true;
  } catch (const Error&) {
    return false;  // the recipe has no such block
  }
}

TEST(RecipeText, EveryKeyIsTried) {
  std::vector<std::string_view> tried, known;
  for (const auto& [key, values] : kValues) tried.push_back(key);
  for (const RecipeField& key : recipe_fields()) known.push_back(key.name);
  EXPECT_THAT(tried, ::testing::UnorderedElementsAreArray(known));
}

// What docs, stubs and requests are made from says what a value is.
TEST(RecipeFields, EachSaysWhatItIs) {
  for (const FieldAccess& access : field_table()) {
    const RecipeField& f = access.field;
    EXPECT_FALSE(f.meaning.empty()) << f.name;
    EXPECT_EQ(find_field(f.name), &access);
    EXPECT_EQ(find_field(f.public_name()), &access);
    EXPECT_EQ(f.kind == FieldKind::kFlag, f.values == "no | yes") << f.name;
    EXPECT_TRUE(f.word.empty() || f.kind == FieldKind::kInteger || f.kind == FieldKind::kNumber) << f.name;
  }
  EXPECT_EQ(find_field(""), nullptr);
}

// `of_no_method`: fields of blocks that no method has by default.
TEST(RecipeFields, AFieldOfTheTableReachesTextMethodsAndPages) {
  const std::string page = methods_markdown();
  std::string all;
  for (const RecipeRow& row : recipe_table()) all += method_text(row.name);
  for (const RecipeField& f : recipe_fields()) {
    EXPECT_THAT(page, HasSubstr("| `" + f.name + "` | ")) << f.name;
    const std::vector<std::string_view> of_no_method = {"gamma", "stamp_page", "stamp", "pin_prompt"};
    if (std::find(of_no_method.begin(), of_no_method.end(), f.name) == of_no_method.end()) {
      EXPECT_THAT(all, HasSubstr("\n  " + f.name + ' ')) << f.name;
    }
  }
}

TEST(RecipeText, EveryMethodIsReadAsItIsPrinted) {
  for (const MethodInfo& method : methods()) {
    const Recipe recipe = make_recipe(method.name);
    EXPECT_EQ(parse_recipe(print_recipe(recipe)), recipe) << method.name;
    EXPECT_EQ(parse_recipe(method.name), recipe);
  }
}

TEST(RecipeText, EveryOverrideOfEveryMethodIsReadAsItIsPrinted) {
  int applied = 0;
  for (const MethodInfo& method : methods())
    for (const auto& [key, values] : kValues)
      for (const std::string_view value : values) {
        Recipe recipe = make_recipe(method.name);
        if (!apply(recipe, key, value)) continue;
        ++applied;
        EXPECT_EQ(parse_recipe(print_recipe(recipe)), recipe) << method.name << ' ' << key << '=' << value;
      }
  EXPECT_GT(applied, 450);
}

TEST(RecipeText, OverridesInAnyOrderAreReadAsTheyArePrinted) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  const std::vector<MethodInfo> all = methods();
  for (int trial = 0; trial < 4000; ++trial) {
    Recipe recipe = make_recipe(all[below(all.size())].name);
    std::string path = recipe.name;
    for (std::size_t i = below(8); i > 0; --i) {
      const auto& [key, values] = kValues[below(kValues.size())];
      const std::string_view value = values[below(values.size())];
      if (apply(recipe, key, value)) path += ' ' + std::string(key) + '=' + std::string(value);
    }
    ASSERT_EQ(parse_recipe(print_recipe(recipe)), recipe) << path;
  }
}

TEST(RecipeText, TypedFieldsAndOverridesSayTheSame) {
  Recipe recipe = make_recipe("quest", {.budget = 512, .sink = 32, .recent = 64});
  recipe.decode->units = PageUnit{32};
  recipe.decode->index = Box{BoxKind::kCuboidMean};
  recipe.decode->schedule = Speculative{CosineGate{.tau = 0.9f, .pool = GatePool::kAny}};
  recipe.dense_layers = {0, 1};
  EXPECT_EQ(parse_recipe("quest:budget=512,sink=32,recent=64,unit=page:32,index=cuboid,schedule=speculative,tau=0.9,"
                         "gate_pool=any,dense=0+1"),
            recipe);
  EXPECT_THAT(print_recipe(recipe), HasSubstr("index=cuboid"));
}

TEST(RecipeText, WhatNoTextMakesIsRefused) {
  Recipe recipe = make_recipe("quest");
  recipe.name = "mine";
  EXPECT_THAT(refusal([&] { print_recipe(recipe); }), HasSubstr("'mine'"));
  recipe = make_recipe("quest");
  recipe.decode->index = OneBit{.group = 48};  // no group that a 1-bit index has
  EXPECT_THAT(refusal([&] { print_recipe(recipe); }), HasSubstr("no overrides"));
  EXPECT_THAT(refusal([] { parse_recipe("qest:budget=5"); }),
              HasSubstr("no KV method is called 'qest': did you mean 'quest'?"));
  EXPECT_THAT(refusal([] { parse_recipe("quest:bugdet=5"); }), HasSubstr("no such key"));
  EXPECT_EQ(refusal([] { parse_recipe("quest:"); }), "");
  EXPECT_THAT(refusal([] { parse_recipe("quest:budget"); }), HasSubstr("expected KEY=VALUE"));
  EXPECT_THAT(refusal([] { parse_recipe(""); }), HasSubstr("no KV method is called ''"));
}

TEST(CheckRecipe, SaysWhyBlocksDoNotCombine) {
  for (const MethodInfo& method : methods()) EXPECT_THAT(check_recipe(make_recipe(method.name)), IsEmpty());
  Recipe recipe = make_recipe("quest");
  recipe.decode->units = TokenUnit{};
  EXPECT_THAT(check_recipe(recipe), ElementsAre(HasSubstr("use unit=page:N, or index=keys with unit=token")));
  recipe.dense_layers = {-1};
  EXPECT_THAT(check_recipe(recipe), ::testing::Contains(HasSubstr("dense layer -1 does not exist")));
  recipe = make_recipe("freekv");
  recipe.budget = 100;
  recipe.sink = 512;
  EXPECT_THAT(check_recipe(recipe), ElementsAre(HasSubstr("budget 100, sink 512")));
}

TEST(CheckRecipe, LayersAreTheModelsToObjectTo) {
  Recipe recipe = make_recipe("quest");
  recipe.dense_layers = {70};
  EXPECT_THAT(check_recipe(recipe), IsEmpty());
}

}  // namespace
}  // namespace mneme
