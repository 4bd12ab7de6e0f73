#include "src/recipes/device_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>

#include "src/recipes/recipes.h"

namespace mneme {
namespace {

std::shared_ptr<const Plan> plan_of(std::string_view recipe, std::int32_t head_dim = 128, std::int32_t kv_heads = 8) {
  return compile(parse_recipe(recipe), {.n_layers = 32, .n_heads = 32, .n_kv_heads = kv_heads, .head_dim = head_dim});
}

TEST(DeviceForm, AllMethodsButThreeAreTheDevicesOwn) {
  for (const RecipeRow& row : recipe_table()) {
    // Blocks of 65,535 tokens; a unit's few keys by their mean; the question in answers.
    const bool by_host = row.name == "clusterkv" || row.name == "infllm" || row.name == "q_llm";
    EXPECT_EQ(device_form(*plan_of(row.name)) == DeviceForm::kHost, by_host) << row.name;
    EXPECT_EQ(host_reason(*plan_of(row.name)) != nullptr, by_host) << row.name;
  }
}

TEST(DeviceForm, FusedSelectionsAreOverridesOfTheUnfused) {
  for (const auto& [recipe, head_dim, form] : {std::tuple{"full", 128, DeviceForm::kPlain},
                                               {"window", 128, DeviceForm::kPlain},
                                               {"h2o", 128, DeviceForm::kPlain},
                                               {"freekv", 128, DeviceForm::kFused},
                                               {"freekv", 80, DeviceForm::kUnfused},
                                               {"freekv:unit=page:16,sink=16", 128, DeviceForm::kFused},
                                               {"freekv:unit=page:8", 64, DeviceForm::kFused},
                                               {"freekv:unit=page:16,index=cuboid", 128, DeviceForm::kUnfused},
                                               {"freekv:unit=page:16,gate=mass", 128, DeviceForm::kFused},
                                               {"freekv:unit=page:16,domain=attention", 128, DeviceForm::kUnfused},
                                               {"freekv:index=cuboid", 128, DeviceForm::kUnfused},
                                               {"quest", 128, DeviceForm::kFused},
                                               {"quest:pool=none", 128, DeviceForm::kUnfused},
                                               {"quest", 80, DeviceForm::kUnfused},
                                               {"quest:unit=page:32", 128, DeviceForm::kFused},
                                               {"fier", 64, DeviceForm::kFused},
                                               {"fier:pool=maxQ", 64, DeviceForm::kUnfused},
                                               {"fier:schedule=boundary", 64, DeviceForm::kUnfused},
                                               {"oracle", 128, DeviceForm::kUnfused},
                                               {"louiskv", 128, DeviceForm::kFused},
                                               {"louiskv", 80, DeviceForm::kFused},
                                               {"louiskv:schedule=every_step", 128, DeviceForm::kFused},
                                               {"actqkv", 256, DeviceForm::kFused},
                                               {"quest:unit=page:32,select=layer", 128, DeviceForm::kUnfused},
                                               {"fier:hold=64", 128, DeviceForm::kUnfused},
                                               {"fier:cutoff=top_p:0.85", 128, DeviceForm::kFused},
                                               {"louiskv:unit=page:32,index=box,sink=32", 128, DeviceForm::kFused},
                                               {"mneme", 128, DeviceForm::kFused},
                                               {"mneme", 64, DeviceForm::kFused},
                                               {"mneme", 96, DeviceForm::kUnfused},
                                               {"mneme:unit=page:16,sink=32", 128, DeviceForm::kUnfused},
                                               {"mneme:pool=meanQ,domain=candidates", 128, DeviceForm::kUnfused},
                                               {"mneme:index=centroids:4", 128, DeviceForm::kUnfused},
                                               {"mneme:index=sketch:12", 128, DeviceForm::kFused},
                                               {"mneme:index=sketch:17", 128, DeviceForm::kUnfused},
                                               {"fier:index=sketch:12", 128, DeviceForm::kFused},
                                               {"fier:index=sketch:12,schedule=speculative", 128, DeviceForm::kUnfused},
                                               {"mneme:select=layer,schedule=every_step", 128, DeviceForm::kUnfused},
                                               {"actqkv", 128, DeviceForm::kFused}}) {
    EXPECT_EQ(device_form(*plan_of(recipe, head_dim)), form) << recipe << ", " << head_dim;
  }
}

TEST(DeviceForm, UnitsOfTheUnfusedSelectionAreAttendedByToken) {
  for (const auto& [recipe, by_token] : {std::pair{"freekv", false},
                                         {"quest", true},
                                         {"random", false},
                                         {"random:unit=page:16", true},
                                         {"oracle:unit=page:32", false},
                                         {"oracle", true},
                                         {"window", false},
                                         {"window:sink=5", true},
                                         {"louiskv", true},
                                         {"actqkv", false},
                                         {"mneme", false},
                                         {"mneme:unit=page:16", true},
                                         {"freekv:index=moments", false},
                                         {"freekv:pool=none", false},
                                         {"freekv:index=cuboid", false},
                                         {"freekv:index=one_bit,group=32", false},
                                         {"freekv:index=one_bit,group=64", true},
                                         {"streaming_llm", false}})
    EXPECT_EQ(attends_by_token(*plan_of(recipe)), by_token) << recipe;
}

TEST(DeviceForm, PagesOf32AreAttendedAsPagesUnderAnyIndex) {
  for (const auto& [recipe, entries] : {std::pair{"freekv", false},  // boxes of the kernel that stores keys
                                        {"freekv:index=cuboid", true},
                                        {"freekv:pool=none", true},
                                        {"mneme", true},
                                        {"random", false},
                                        {"oracle:unit=page:32", false},
                                        {"quest", false},
                                        {"actqkv", false}})
    EXPECT_EQ(has_page_entries(*plan_of(recipe)), entries) << recipe;
}

// Blocks that no kernel has are named, with what a kernel would take.
TEST(DeviceForm, TheHostAttendsWhatNoKernelDoes) {
  for (const auto& [recipe, words] : {std::pair{"louiskv:index=box", "index=centroid"},
                                      {"louiskv:index=cuboid", "index=centroid"},
                                      {"louiskv:block=10000", "block=8192"},
                                      {"louiskv:domain=attention", "domain=candidates"},
                                      {"louiskv:pool=maxQ", "pool=meanS"},
                                      {"louiskv:pool=none", "pool=meanS"},
                                      {"mneme:unit=page:128,sink=128", "unit=page:64"},
                                      {"infllm", "unit=page:32"},
                                      {"infllm:unit=page:32", "similarity=dot"},
                                      {"actqkv:question_in=all", "question_in=all"},
                                      {"actqkv:unit=page:64", "unit=page:32"},
                                      {"actqkv:positions=absolute", "positions=one_angle"},
                                      {"actqkv:match=mean,top=4", "match=best,top=32"}}) {
    const auto plan = plan_of(recipe);
    const char* reason = host_reason(*plan);
    ASSERT_NE(reason, nullptr) << recipe;
    EXPECT_NE(std::string(reason).find(words), std::string::npos) << recipe << ": " << reason;
    EXPECT_EQ(device_form(*plan), DeviceForm::kHost) << recipe;
  }
  Recipe heads = parse_recipe("window");
  heads.full_heads = FullHeads{.n_layers = 2, .n_kv_heads = 2, .full = {1, 0, 0, 1}};
  const MethodShape shape{.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64};
  EXPECT_EQ(device_form(*compile(heads, shape)), DeviceForm::kHost);
}

// Layers with a window of the model's own: a method's positions are the host's to turn.
TEST(DeviceForm, WindowsOfMethodAndModelTogetherAreTheHosts) {
  const MethodShape shape{
      .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .sliding_window = 128, .windowed = {true, false}};
  EXPECT_EQ(device_form(*compile(parse_recipe("streaming_llm"), shape)), DeviceForm::kHost);
  EXPECT_EQ(device_form(*compile(parse_recipe("freekv"), shape)), DeviceForm::kFused);
}

// Of keys and values in 8 bits, selections of a whole layer by its keys are the host's; all else stays.
TEST(DeviceForm, EightBitsChangeSelectionByLayerAlone) {
  const MethodShape shape{.n_layers = 2, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .kv_dtype = DType::kInt8};
  for (const RecipeRow& row : recipe_table()) {
    const auto plan = compile(parse_recipe(row.name), shape);
    MethodShape wide = shape;
    wide.kv_dtype = DType::kBF16;
    const DeviceForm of_16_bits = device_form(*compile(parse_recipe(row.name), wide));
    EXPECT_EQ(device_form(*plan), plan->layer_selection ? DeviceForm::kHost : of_16_bits) << row.name;
  }
}

TEST(DeviceForm, BudgetsOfPromptsGoWithUnitsOfAllKinds) {
  for (const char* recipe : {"quest:unit=page:32,recent=64,budget=norm", "freekv:recent=64,budget=norm,rows=7",
                             "freekv:unit=token,index=one_bit,recent=64,budget=norm", "fier:budget=norm,loss=0.2",
                             "oracle:budget=norm", "random:budget=norm", "louiskv:budget=norm",
                             "louiskv:unit=page:32,index=box,recent=64,budget=norm,sink=32", "refreekv"})
    EXPECT_EQ(host_reason(*plan_of(recipe)), nullptr) << recipe;
}

}  // namespace
}  // namespace mneme
