#include "src/model/weight_placement.h"

#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace mneme
