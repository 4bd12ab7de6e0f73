#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/recipes/compile.h"
#include "src/recipes/device_form.h"
#include "src/recipes/fields.h"
#include "src/recipes/fit_budget.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "src/selection/summary/sketch.h"
#include "tests/error_message.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

constexpr MethodShape kShape{.n_layers = 8, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64};

template <typename F>
std::string refusal(const F& f) {
  return error_message(ErrorKind::kOption, f);
}

TEST(Recipes, EveryRowMakesARecipeOfItsNameThatCompiles) {
  for (const RecipeRow& row : recipe_table()) {
    const Recipe r = make_recipe(row.name, {});
    EXPECT_EQ(r.name, row.name);
    EXPECT_FALSE(row.summary.empty());
    EXPECT_THAT(check(r, kShape), ::testing::IsEmpty()) << row.name;
    const auto plan = compile(r, kShape);
    EXPECT_EQ(plan->selects(), r.decode.has_value()) << row.name;
  }
}

TEST(Recipes, PapersDefaults) {
  const Recipe f = make_recipe("freekv", {});
  EXPECT_EQ(f.budget, 2048);
  EXPECT_EQ(f.dense_layers, std::vector<std::int32_t>{0});
  EXPECT_EQ(override_value(f, "unit"), "page:32");
  EXPECT_EQ(override_value(f, "pool"), "meanS");
  EXPECT_EQ(override_value(f, "tau"), "0.8");
  const Recipe q = make_recipe("quest", {});
  EXPECT_EQ(override_value(q, "unit"), "page:16");
  EXPECT_EQ(override_value(q, "tau"), "");
  EXPECT_EQ(override_value(make_recipe("fier", {}), "group"), "32");
}

TEST(Recipes, OptionsReachEveryMethod) {
  RecipeOptions o{.budget = 512, .sink = 32, .recent = 128, .dense_layers = std::vector<std::int32_t>{}};
  for (const RecipeRow& row : recipe_table()) {
    const Recipe r = make_recipe(row.name, o);
    if (r.attend == Attend::kEverything) continue;
    EXPECT_EQ(r.budget, 512) << row.name;
    EXPECT_EQ(r.sink, 32) << row.name;
    EXPECT_TRUE(r.dense_layers.empty()) << row.name;
  }
}

TEST(Recipes, UnknownNameListsTheKnownOnes) {
  EXPECT_THAT(refusal([] { make_recipe("frekv", {}); }), HasSubstr("did you mean 'freekv'?"));
  EXPECT_THAT(refusal([] { make_recipe("paged", {}); }),
              HasSubstr("full, window, random, oracle, mneme, quest, freekv, fier"));
}

// Units, windows, groups, shares: what steps divide by comes from requests. Every number of every key, at its ends, is
// refused or makes a plan, for models of one layer and one head too.
TEST(Recipes, NumbersAtTheirEndsAreRefusedOrCompile) {
  int compiled = 0, refused = 0;
  for (const RecipeField& field : recipe_fields()) {
    if (field.name == "full_heads") continue;  // a file
    std::vector<std::string> values;
    for (const std::string number : {"0", "1", "-1", "2147483647", "2147483648", "1e-300", "nan"}) {
      values.push_back(number);
      std::string_view rest = field.values;
      while (!rest.empty()) {
        const std::size_t end = std::min(rest.find(" | "), rest.size());
        const std::string_view form = rest.substr(0, end);
        const std::size_t colon = form.find(':');
        if (colon != form.npos) values.push_back(std::string(form.substr(0, colon + 1)) + number);
        values.emplace_back(form);
        rest.remove_prefix(std::min(end + 3, rest.size()));
      }
    }
    for (const RecipeRow& row : recipe_table()) {
      for (const std::string& value : values) {
        for (const MethodShape& shape :
             {kShape, MethodShape{.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8}}) {
          try {
            Recipe r = make_recipe(row.name, {});
            apply_overrides(fmt::format("{}={}", field.name, value), r);
            fit_defaults({}, r);
            compile(r, shape);
            ++compiled;
          } catch (const Error& e) {
            EXPECT_EQ(e.kind(), ErrorKind::kOption)
                << row.name << " " << field.name << "=" << value << ": " << e.what();
            ++refused;
          }
        }
      }
    }
  }
  EXPECT_GT(compiled, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Recipes, WhatDropsFollowsItsPaper) {
  const Recipe r = make_recipe("refreekv", {});
  EXPECT_EQ(override_value(r, "budget"), "norm");
  EXPECT_EQ(override_value(r, "loss"), "0.01");
  EXPECT_EQ(override_value(r, "norm_first"), "4");
  EXPECT_EQ(r.dense_layers, (std::vector<std::int32_t>{0, 1}));
  const Recipe s = make_recipe("snapkv", {});
  EXPECT_EQ(override_value(s, "rows"), "32");
  EXPECT_EQ(override_value(s, "smooth"), "max:7");
  const Recipe h = make_recipe("h2o", {.budget = 500});
  EXPECT_EQ(h.recent, 250);
  EXPECT_EQ(override_value(h, "rows"), "all");
  EXPECT_EQ(compile(h, kShape)->observed_rows, Plan::kAllRows);
  EXPECT_EQ(override_value(make_recipe("tova", {}), "scope"), "layer");
  EXPECT_EQ(compile(make_recipe("quest", {}), kShape)->observed_rows, 0);
}

// A default of 16 directions was refused for heads of 8 channels.
TEST(Recipes, SketchesHaveNoMoreDirectionsThanAHeadHasChannels) {
  for (const auto& [head_dim, rank] : {std::pair{8, 8}, std::pair{15, 15}, std::pair{16, 16}, std::pair{64, 16}}) {
    MethodShape shape = kShape;
    shape.head_dim = head_dim;
    const Recipe recipe = make_recipe("mneme", {});
    const auto plan = compile(recipe, shape);
    EXPECT_EQ(override_value(plan->recipe, "index"), fmt::format("sketch:{}", rank));
    EXPECT_EQ(override_value(recipe, "index"), "sketch:16");
    EXPECT_EQ(plan->index->entry_bytes(shape.attention()), sketch_entry_bytes(head_dim, 32, rank));
  }
}

std::shared_ptr<const Plan> plan_of(const char* recipe) {
  return compile(parse_recipe(recipe), kShape);
}

TEST(Plans, SayOfASelectionWhatItsRecipeDoes) {
  const SelectionPlan freekv = plan_of("freekv:tau=0.6,gate_pool=max")->selection;
  EXPECT_EQ(freekv.schedule, ScheduleKind::kSpeculative);
  EXPECT_EQ(freekv.scores.index, EntryKind::kMinMaxBox);
  EXPECT_EQ(freekv.scores.alpha, 0.125f);  // 1 / sqrt(64)
  EXPECT_EQ(freekv.gate, (SelectionPlan::Gate{.kind = GateKind::kCosine, .pool = GatePool::kMax, .tau = 0.6f}));
  const SelectionPlan mass = plan_of("freekv:gate=mass,eps=0.25,eps_of=attended")->selection;
  EXPECT_EQ(mass.gate, (SelectionPlan::Gate{.kind = GateKind::kMass, .eps = 0.25f, .of_attended = true}));
  const SelectionPlan kept = plan_of("quest:schedule=boundary,tau=0.5,max_reuse=9")->selection;
  EXPECT_EQ(kept.schedule, ScheduleKind::kBoundary);
  EXPECT_EQ(kept.gate, (SelectionPlan::Gate{.kind = GateKind::kCosine, .tau = 0.5f, .max_reuse = 9}));
  EXPECT_EQ(plan_of("mneme:index=sketch:12")->selection.scores.rank, 12);
  EXPECT_EQ(plan_of("fier:levels=meanabs")->selection.scores.index, EntryKind::kOneBitMeanAbs);
  EXPECT_EQ(plan_of("quest:cutoff=top_p:0.75")->selection.top_p, 0.75f);
  EXPECT_EQ(plan_of("oracle")->selection.scores.index, EntryKind::kKeys);
  EXPECT_EQ(plan_of("random:seed=5")->selection.seed, 5u);
  EXPECT_EQ(plan_of("window")->selection.schedule, ScheduleKind::kNone);
  EXPECT_EQ(plan_of("h2o")->selection.schedule, ScheduleKind::kNone);
}

TEST(Plans, HaveUnitsAndRegionAsTheDeviceCacheCountsThem) {
  const auto pages = plan_of("quest:unit=page:32,budget=512,sink=32,recent=128");
  EXPECT_EQ(pages->selection.units, (SelectionPlan::Units{.tokens = 32, .entry_tokens = 32}));
  EXPECT_EQ(pages->selection.region,
            (SelectionPlan::Region{.budget = 512, .sink = 32, .recent = 128, .n_select = (512 - 32 - 128) / 32}));
  const SelectionPlan tokens = plan_of("fier:budget=512,group=64")->selection;
  EXPECT_EQ(tokens.units, (SelectionPlan::Units{.tokens = 1, .entry_tokens = 64}));
  EXPECT_EQ(tokens.region.n_select, 512 - 1);  // the current token is in the window
  const SelectionPlan small = plan_of("quest:unit=page:8,budget=512,sink=32,recent=128")->selection;
  EXPECT_EQ(small.units, (SelectionPlan::Units{.tokens = 1, .select_tokens = 8, .entry_tokens = 8}));
  EXPECT_EQ(small.region.n_select, 512 - 32 - 128);
  // A segment of the largest size, 64 tokens, has just left the window.
  EXPECT_EQ(plan_of("louiskv:budget=512,sink=16,recent=128")->selection.region.n_select, 512 - 16 - (128 - 64 + 1));
  SelectionPlan other = pages->selection;
  set_slot_region(*pages, 1024, other);
  EXPECT_EQ(other.region.n_select, (1024 - 32 - 128) / 32);
  EXPECT_TRUE(plan_of("quest:budget=norm")->selection.region.by_prompt);
}

TEST(Plans, SayWhatIsDroppedAndHowLayersAndHeadsShareIt) {
  EXPECT_FALSE(plan_of("quest")->drop);
  const auto snapkv = plan_of("snapkv:budget=500,sink=4,recent=40,smooth=max:7,scope=layer");
  ASSERT_TRUE(snapkv->drop);
  EXPECT_EQ(snapkv->budget(), 500);
  EXPECT_EQ(snapkv->drop->sink, 4);
  EXPECT_EQ(snapkv->drop->recent, 40);
  EXPECT_EQ(snapkv->drop->smooth, 7);
  EXPECT_EQ(snapkv->drop->smooth_by, SmoothBy::kMax);
  EXPECT_EQ(snapkv->drop->scope, DropScope::kLayer);
  EXPECT_EQ(snapkv->drop->share, ShareKind::kEven);
  EXPECT_EQ(snapkv->observed_rows, 32);
  const auto pyramid = plan_of("snapkv:share=pyramid:10");
  EXPECT_EQ(pyramid->drop->share, ShareKind::kPyramid);
  EXPECT_EQ(pyramid->drop->pyramid.beta, 10);
  const auto heads = plan_of("snapkv:share=heads:0.5");
  EXPECT_EQ(heads->drop->share, ShareKind::kHeads);
  EXPECT_EQ(heads->drop->heads.floor, 0.5f);
  EXPECT_TRUE(plan_of("refreekv:loss=0.5")->norm);
  EXPECT_EQ(plan_of("refreekv:loss=0.5")->norm->loss, 0.5f);
}

// FIER's index under FreeKV's schedule.
TEST(Override, ComposesAcrossMethods) {
  Recipe r = make_recipe("freekv", {});
  apply_overrides("index=one_bit,unit=token,group=64,levels=meanabs", r);
  ASSERT_TRUE(r.decode);
  EXPECT_EQ(std::get<OneBit>(r.decode->index), (OneBit{64, OneBitLevels::kMeanAbs}));
  EXPECT_TRUE(std::holds_alternative<TokenUnit>(r.decode->units.prompt));
  EXPECT_TRUE(std::holds_alternative<Speculative>(r.decode->schedule));
  EXPECT_EQ(compile(r, kShape)->rules.entry_tokens, 64);
}

TEST(Override, AGateIsOneOfTwo) {
  Recipe r = make_recipe("freekv", {});
  EXPECT_EQ(override_value(r, "gate"), "cosine");
  apply_overrides("tau=0.5,gate=cosine", r);
  EXPECT_EQ(override_value(r, "tau"), "0.5");
  apply_overrides("gate=mass,eps=0.125,gate=mass", r);
  EXPECT_EQ(override_value(r, "eps"), "0.125");
  EXPECT_EQ(override_value(r, "tau"), "");
  const auto plan = compile(r, kShape);
  EXPECT_TRUE(plan->speculative());
  EXPECT_FALSE(plan->cosine_gate());
  ASSERT_TRUE(plan->mass_gate());
  EXPECT_EQ(plan->selection.gate.eps, 0.125f);
  EXPECT_EQ(plan->gates(), static_cast<std::size_t>(kShape.n_kv_heads));
  EXPECT_EQ(plan->log_weight_scale(), 1.0f);
  apply_overrides("pool=meanQK", r);
  EXPECT_EQ(compile(r, kShape)->log_weight_scale(), plan->selection.scores.alpha);
  EXPECT_THAT(refusal([&] { apply_overrides("tau=0.5", r); }), HasSubstr("gate=cosine"));
  EXPECT_THAT(refusal([&] { apply_overrides("gate=sine", r); }), HasSubstr("cosine or mass"));
  EXPECT_THAT(refusal([&] { apply_overrides("eps=1.5", r); }), HasSubstr("number from -1 to 1"));
  apply_overrides("gate=cosine", r);
  EXPECT_THAT(refusal([&] { apply_overrides("eps=0.1", r); }), HasSubstr("gate=mass"));
  Recipe boundary = make_recipe("louiskv", {});
  EXPECT_EQ(override_value(boundary, "gate"), "cosine");
  EXPECT_THAT(refusal([&] { apply_overrides("gate=mass", boundary); }), HasSubstr("schedule=speculative"));
  Recipe every = make_recipe("quest", {});
  EXPECT_THAT(refusal([&] { apply_overrides("gate=mass", every); }), HasSubstr("schedule=speculative"));
  apply_overrides("schedule=speculative,gate=mass", every);
  EXPECT_TRUE(compile(every, kShape)->mass_gate());
}

// Setting every key to the value that it already has changes nothing.
TEST(Override, EveryKeyReadsBackWhatItPrints) {
  for (const RecipeRow& row : recipe_table()) {
    const Recipe r = make_recipe(row.name, {});
    for (const RecipeField& key : recipe_fields()) {
      const std::string value = override_value(r, key.name);
      if (value.empty()) continue;
      Recipe copy = r;
      apply_overrides(key.name + "=" + value, copy);
      EXPECT_EQ(copy, r) << row.name << " " << key.name << "=" << value;
    }
  }
}

TEST(Override, ErrorsNameKeyAndWhatFits) {
  Recipe r = make_recipe("quest", {});
  EXPECT_THAT(refusal([&] { apply_overrides("page=8", r); }), HasSubstr("no such key"));
  EXPECT_THAT(refusal([&] { apply_overrides("unit=page:0", r); }), HasSubstr("number from 1"));
  EXPECT_THAT(refusal([&] { apply_overrides("pool=avg", r); }), HasSubstr("meanQK"));
  EXPECT_THAT(refusal([&] { apply_overrides("tau=0.5", r); }), HasSubstr("schedule=speculative"));
  EXPECT_THAT(refusal([&] { apply_overrides("budget", r); }), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(refusal([&] { apply_overrides("budget=12x", r); }), HasSubstr("number"));
  EXPECT_THAT(refusal([&] { apply_overrides("group=32", r); }), HasSubstr("index=one_bit"));
  // Blocks that went: what there is instead is listed.
  for (const char* gone : {"unit_fetch=4", "scan=two_level", "page_score=lse", "probe=previous_layer"})
    EXPECT_THAT(refusal([&] { apply_overrides(gone, r); }), HasSubstr("no such key")) << gone;
  Recipe w = make_recipe("window", {});
  EXPECT_THAT(refusal([&] { apply_overrides("unit=token", w); }), HasSubstr("selects nothing"));
}

TEST(Check, NamesWhatCannotBe) {
  const auto first = [](Recipe r, MethodShape shape = kShape) {
    const auto reasons = check(r, shape);
    return reasons.empty() ? std::string("fine") : reasons.front();
  };
  Recipe r = make_recipe("freekv", {});
  r.dense_layers = {8};
  EXPECT_THAT(first(r), HasSubstr("layers 0 to 7"));
  r = make_recipe("freekv", {});
  r = make_recipe("freekv", {.budget = 512});
  EXPECT_THAT(first(r), HasSubstr("no room"));
  r = make_recipe("quest", {.sink = 8});
  EXPECT_THAT(first(r), HasSubstr("multiple"));
  r = make_recipe("quest", {});
  r.decode->units = TokenUnit{};
  EXPECT_THAT(first(r), HasSubstr("index=keys"));
  r = make_recipe("random", {});
  r.decode->schedule = Speculative{};
  EXPECT_THAT(first(r), HasSubstr("every step"));
  r = make_recipe("quest", {});
  r.decode->units.output = PageUnit{32};
  EXPECT_THAT(first(r), HasSubstr("same unit"));
  MethodShape sliding = kShape;
  sliding.sliding_window = 4096;
  EXPECT_THAT(first(make_recipe("quest", {}), sliding), HasSubstr("sliding window"));
  EXPECT_EQ(first(make_recipe("full", {}), sliding), "fine");
  EXPECT_THAT(first(make_recipe("snapkv", {}), sliding), HasSubstr("sliding window"));
  MethodShape unturned = kShape;
  unturned.turns_positions = false;
  for (const char* name : {"streaming_llm", "actqkv"})
    EXPECT_THAT(first(make_recipe(name, {}), unturned), HasSubstr("positions=absolute")) << name;
  EXPECT_EQ(first(make_recipe("quest", {}), unturned), "fine");
}

TEST(Check, NamesWhatCannotBeDropped) {
  const auto first = [](const char* method, const char* overrides) {
    Recipe r = make_recipe(method, {});
    apply_overrides(overrides, r);
    const auto reasons = check(r, kShape);
    return reasons.empty() ? std::string("fine") : reasons.front();
  };
  EXPECT_EQ(first("quest", "budget=norm"), "fine");
  EXPECT_EQ(first("refreekv", "rank=mass,rows=8"), "fine");
  EXPECT_EQ(first("refreekv", "budget=512"), "fine");
  EXPECT_THAT(first("window", "budget=norm"), HasSubstr("selects or drops"));
  EXPECT_THAT(first("quest", "budget=norm,rows=all"), HasSubstr("rows=N"));
  EXPECT_THAT(first("refreekv", "scope=kv_head"), HasSubstr("scope=layer"));
  EXPECT_THAT(first("refreekv", "drop=over_budget"), HasSubstr("prefill_end"));
  EXPECT_THAT(first("refreekv", "smooth=max:3"), HasSubstr("smooth=none"));
  EXPECT_THAT(first("snapkv", "smooth=max:4"), HasSubstr("odd"));
  EXPECT_THAT(first("snapkv", "budget=20"), HasSubstr("must hold sink and recent"));
  EXPECT_THAT(first("tova", "rows=3"), HasSubstr("rows=1 or rows=all"));
  EXPECT_THAT(first("tova", "budget=1"), HasSubstr("two tokens"));
  Recipe both = make_recipe("quest", {});
  both.prefill_end = DropStage{};
  EXPECT_THAT(check(both, kShape).front(), HasSubstr("do not go together"));
  EXPECT_THAT(refusal([&] {
                Recipe q = make_recipe("quest", {});
                apply_overrides("rank=mass", q);
              }),
              HasSubstr("drops nothing"));
  EXPECT_THAT(refusal([&] {
                Recipe q = make_recipe("snapkv", {});
                apply_overrides("loss=0.1", q);
              }),
              HasSubstr("budget=norm"));
}

// Kept are token 0 and the last three: numbered 0 to 3 in the cache, the query has position 3, whatever its own is.
TEST(Recipes, InTheCacheTheQueryStandsAtTheBudgetsLastPosition) {
  const auto plan = compile(make_recipe("streaming_llm", {.budget = 4, .sink = 1}), kShape);
  ASSERT_TRUE(plan->remote_position);
  EXPECT_EQ(*plan->remote_position, 3);
  EXPECT_EQ(plan->rules.recent, 3);
  EXPECT_FALSE(compile(make_recipe("window", {.budget = 4, .sink = 1}), kShape)->remote_position);
}

}  // namespace
}  // namespace mneme
