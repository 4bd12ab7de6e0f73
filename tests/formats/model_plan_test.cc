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
  const auto layer = [](std::int32_t number) -> LayerPlan {
    return {
        .blocks = {
            AttentionPlan{.n_heads = 8, .n_kv_heads = 2, .head_dim = 16, .qk_norm = QkNorm::kHeads, .kv_layer = number},
            MlpPlan{.width = 96}}};
  };
  EXPECT_EQ(model_plan_of(c), (ModelPlan{.layers = {layer(0), layer(1), layer(2)}}));
}

// Layers with a state and those with keys and values are numbered apart.
TEST(ModelPlan, OfLinearAttentionNumbersBothKindsOfLayers) {
  ModelConfig c = config_of(5);
  c.output_gate = true;
  c.experts.shared = 24, c.experts.n = 4;
  c.delta = {.n_k_heads = 2,
             .n_v_heads = 4,
             .d_k = 8,
             .d_v = 16,
             .taps = 3,
             .tiled = true,
             .layers = {true, false, true, true, false}};
  const ModelPlan plan = model_plan_of(c);
  for (const auto& [layer, number] : {std::pair{0, 0}, {2, 1}, {3, 2}})
    EXPECT_EQ(
        plan.layers[static_cast<std::size_t>(layer)].blocks[0],
        Mixer(DeltaPlan{
            .n_k_heads = 2, .n_v_heads = 4, .d_k = 8, .d_v = 16, .taps = 3, .tiled = true, .state_layer = number}));
  for (const auto& [layer, number] : {std::pair{1, 0}, {4, 1}}) {
    const auto& attention = std::get<AttentionPlan>(plan.layers[static_cast<std::size_t>(layer)].blocks[0]);
    EXPECT_EQ(attention.kv_layer, number);
    EXPECT_TRUE(attention.output_gate);
  }
  EXPECT_EQ(std::get<ExpertsPlan>(plan.layers[0].blocks[1]).shared, 24);
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
