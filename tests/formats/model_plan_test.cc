#include "src/formats/model_plan.h"

#include <gtest/gtest.h>

namespace mneme {
namespace {

ModelConfig config_of(std::int64_t n_layers) {
  ModelConfig c;
  c.n_layers = n_layers;
  c.hidden = 64;
  c.ffn = 96;
  c.n_heads = 8;
  c.n_kv_heads = 2;
  c.head_dim = 16;
  return c;
}

TEST(ModelPlan, OfADenseModelHasAttentionAndMlpInEachLayer) {
  ModelConfig c = config_of(3);
  c.qk_norm = true;
  const LayerPlan layer{
      .blocks = {AttentionPlan{.n_heads = 8, .n_kv_heads = 2, .head_dim = 16, .qk_norm = QkNorm::kHeads},
                 MlpPlan{.width = 96}}};
  EXPECT_EQ(model_plan_of(c), (ModelPlan{.layers = {layer, layer, layer}}));
}

TEST(ModelPlan, OfAMixtureHasExpertsInPlaceOfMlp) {
  ModelConfig c = config_of(1);
  c.experts = {.n = 6, .n_used = 2, .ffn = 32, .normalise = false, .limit = 7.0};
  const ExpertsPlan experts{.n = 6, .n_used = 2, .width = 32, .normalise = false, .limit = 7.0};
  EXPECT_EQ(model_plan_of(c).layers[0].blocks[1], Mixer(experts));
}

TEST(ModelPlan, SaysTheWindowOfEveryLayerBeyond64) {
  ModelConfig c = config_of(88);
  c.sliding_window = 128;
  c.windowed.assign(88, false);
  c.windowed[0] = c.windowed[64] = c.windowed[87] = true;
  const ModelPlan plan = model_plan_of(c);
  for (std::size_t l = 0; l < 88; ++l)
    EXPECT_EQ(std::get<AttentionPlan>(plan.layers[l].blocks[0]).window, c.windowed[l] ? 128 : 0) << l;
}

TEST(ModelPlan, WithoutAListOfKindsEveryLayerHasTheWindow) {
  ModelConfig c = config_of(2);
  c.sliding_window = 40;
  for (const LayerPlan& layer : model_plan_of(c).layers) EXPECT_EQ(std::get<AttentionPlan>(layer.blocks[0]).window, 40);
}

TEST(ModelPlan, CarriesTheTemperatureOfQueries) {
  ModelConfig c = config_of(1);
  c.temperature = 0.5;
  c.temperature_context = 16;
  EXPECT_EQ(std::get<AttentionPlan>(model_plan_of(c).layers[0].blocks[0]).temperature,
            (QueryTemperature{.beta = 0.5, .context = 16}));
}

}  // namespace
}  // namespace mneme
