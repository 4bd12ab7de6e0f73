#include "src/recipes/device_form.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tuple>

#include "src/recipes/blocks/cpu_blocks.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

std::shared_ptr<const Plan> plan_of(std::string_view recipe, std::int32_t head_dim = 128, std::int32_t kv_heads = 8) {
  return compile(parse_recipe(recipe), {.n_layers = 32, .n_heads = 32, .n_kv_heads = kv_heads, .head_dim = head_dim});
}

TEST(DeviceForm, DefaultsOfAllMethodsButThoseOfBlocksOfTheCpuRunOnADevice) {
  for (const RecipeRow& row : recipe_table()) {
    const char* refusal = device_refusal(*plan_of(row.name));
    if (row.name == "clusterkv" || row.name == "infllm" || row.name == "q_llm") {
      EXPECT_NE(refusal, nullptr) << row.name;  // blocks of 65,535 tokens; a unit's few keys by their mean
    } else {
      EXPECT_EQ(refusal, cpu_block(*plan_of(row.name))) << row.name;
    }
  }
}

TEST(DeviceForm, FusedSelectionsAreOverridesOfTheUnfused) {
  for (const auto& [recipe, head_dim, form] : {std::tuple{"full", 128, DeviceForm::kPlain},
                                               {"window", 128, DeviceForm::kPlain},
                                               {"h2o", 128, DeviceForm::kPlain},
                                               {"freekv", 128, DeviceForm::kFused},
                                               {"freekv", 80, DeviceForm::kUnfused},
                                               {"freekv:unit=page:16,sink=16", 128, DeviceForm::kUnfused},
                                               {"freekv:index=cuboid", 128, DeviceForm::kUnfused},
                                               {"quest", 128, DeviceForm::kUnfused},
                                               {"quest:unit=page:32", 128, DeviceForm::kFused},
                                               {"quest:unit=page:32,probe=previous_layer", 128, DeviceForm::kUnfused},
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
                                               {"actqkv", 128, DeviceForm::kFused}}) {
    EXPECT_EQ(device_form(*plan_of(recipe, head_dim)), form) << recipe << ", " << head_dim;
    if (form == DeviceForm::kFused && !plan_of(recipe, head_dim)->lists &&
        !plan_of(recipe, head_dim)->layer_selection) {
      EXPECT_EQ(device_form(*plan_of(recipe, head_dim), true), DeviceForm::kUnfused) << recipe;
    }
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

// What a device does not run yet is refused with what to change.
TEST(DeviceForm, RefusesWithAReason) {
  for (const auto& [recipe, words] : {std::pair{"louiskv:index=box", "--kv index=centroid"},
                                      {"louiskv:block=10000", "--kv block=8192"},
                                      {"louiskv:probe=previous_layer", "--kv probe=current"},
                                      {"louiskv:domain=attention", "domain=candidates"},
                                      {"mneme:unit=page:128,sink=128", "--kv unit=page:64"},
                                      {"actqkv:match=mean,top=4", "--kv match=best,top=32"}}) {
    const char* refusal = device_refusal(*plan_of(recipe));
    ASSERT_NE(refusal, nullptr) << recipe;
    EXPECT_NE(std::string(refusal).find(words), std::string::npos) << recipe << ": " << refusal;
    EXPECT_EQ(device_form(*plan_of(recipe)), DeviceForm::kNone) << recipe;
  }
}

}  // namespace
}  // namespace mneme
