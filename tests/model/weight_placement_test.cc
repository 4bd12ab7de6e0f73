#include "src/model/weight_placement.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/model/test_models.h"

namespace mneme {
namespace {

TEST(WeightPlacement, KeepsTheFirstLayers) {
  const WeightPlacement p = first_layers(3);
  EXPECT_FALSE(p.others_on_host(2) || p.experts_on_host(2));
  EXPECT_TRUE(p.others_on_host(3) && p.experts_on_host(3));
}

TEST(WeightPlacement, FillsTheRoom) {
  const std::vector<LayerWeightBytes> dense(4, {.experts = 0, .others = 100});
  EXPECT_EQ(fitting_layers(dense, 400).layers, 4);
  EXPECT_EQ(fitting_layers(dense, 400).expert_layers, 4);
  EXPECT_EQ(fitting_layers(dense, 399).layers, 3);
  EXPECT_EQ(fitting_layers(dense, 0).layers, 0);
  EXPECT_EQ(fitting_layers(dense, -1).layers, 0);
}

// Experts of the last layers go first; layers follow once no experts are left on the device.
TEST(WeightPlacement, SendsExpertsAwayFirst) {
  const std::vector<LayerWeightBytes> mixture(4, {.experts = 1000, .others = 100});
  const auto expect = [&](std::int64_t room, std::int64_t layers, std::int64_t expert_layers) {
    const WeightPlacement p = fitting_layers(mixture, room);
    EXPECT_EQ(p.layers, layers) << room;
    EXPECT_EQ(p.expert_layers, expert_layers) << room;
  };
  expect(4400, 4, 4);
  expect(4399, 4, 3);
  expect(1399, 4, 0);
  expect(399, 3, 0);
}

// A mixture has no dense feed-forward layer, a dense model no experts: the matrices that are not there take nothing.
TEST(WeightPlacement, CountsTheMatricesThatAModelHas) {
  ThreadPool threads(1);
  for (const Architecture architecture : all_architectures()) {
    const auto model = Model::random(small_config(architecture), DType::kBF16, {}, 5, {.pool = &threads});
    const ModelConfig& c = model->config();
    if (c.output_gate) continue;  // and layers with linear attention: no one formula
    const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
    const std::vector<LayerWeightBytes> layers = layer_weight_bytes(*model);
    ASSERT_EQ(std::ssize(layers), c.n_layers) << architecture_name(architecture);
    for (const LayerWeightBytes& l : layers) {
      EXPECT_EQ(l.experts, 2 * 3 * c.experts.n * c.experts.ffn * c.hidden) << architecture_name(architecture);
      const std::int64_t dense = c.experts.n > 0 ? 0 : 3 * c.ffn * c.hidden;
      EXPECT_EQ(l.others, 2 * ((2 * q + 2 * kv) * c.hidden + dense)) << architecture_name(architecture);
    }
  }
}

}  // namespace
}  // namespace mneme
