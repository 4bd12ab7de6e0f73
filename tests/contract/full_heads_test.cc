// KV heads that attend everything: the file, and what a step attends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "reference/methods/decode_attention_ref.h"
#include "src/base/error.h"
#include "src/methods/decode_attention.h"
#include "src/recipes/blocks/full_heads.h"
#include "src/recipes/override.h"
#include "tests/contract/random_sequence.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

TEST(FullHeads, AFileIsALineALayer) {
  const FullHeads heads = parse_full_heads("0.5\t0.49\r\n\n1 0\n0\t0.9", "f");
  EXPECT_EQ(heads.n_layers, 3);
  EXPECT_EQ(heads.n_kv_heads, 2);
  EXPECT_THAT(heads.full, ElementsAre(1, 0, 1, 0, 0, 1));
  EXPECT_THROW(parse_full_heads("", "f"), Error);
  EXPECT_THROW(parse_full_heads("1 0\n1\n", "f"), Error);
  EXPECT_THROW(parse_full_heads("1 x\n", "f"), Error);
}

class FullHeadsStep : public ::testing::TestWithParam<const char*> {};

TEST_P(FullHeadsStep, AttendsAsTheReference) {
  const MethodShape shape{.n_layers = kLayers, .n_heads = 8, .n_kv_heads = 2, .head_dim = kHeadDim};
  Recipe recipe = parse_recipe(GetParam());
  recipe.full_heads = parse_full_heads("0 1\n0 0\n1 1\n", "f");
  const auto plan = compile(recipe, shape);
  ThreadPool pool(1);
  DecodeAttention attention({.pool = &pool, .rounding = Rounding::kFixed}, kRope);
  Sequence seq(shape, plan, Values::kReal, 7);
  std::vector<ReferenceLayer> reference;
  for (std::int32_t l = 0; l < kLayers; ++l) reference.emplace_back(plan, l, kRope);
  seq.append(200);
  seq.close_units(attention);
  std::vector<float> out(seq.width()), expected(seq.width());
  for (int step = 0; step < 10; ++step) {
    seq.append(1);
    seq.new_queries();
    for (std::int32_t l = 0; l < kLayers; ++l) {
      const DecodeRow row{.cache = &seq.cache(), .method = seq.method(), .q = seq.query(l).data(), .out = out.data()};
      attention.run(l, std::span(&row, 1), shape.attention());
      const auto heads = reference[l].step(seq.cache(), seq.query(l).data(), expected.data());
      if (l == 1)
        EXPECT_LE(heads[1].tokens.size(), 96u);
      else
        EXPECT_EQ(heads[1].tokens.size(), 201u + step);
      for (std::size_t i = 0; i < out.size(); ++i)
        ASSERT_LE(std::abs(out[i] - expected[i]), 2e-5f * (1 + std::abs(expected[i]))) << step << " layer " << l;
    }
  }
  const LayerStats& stats = seq.method()->stats().layers[0];  // one full head of two: the mean of both
  EXPECT_NEAR(static_cast<double>(stats.attended_tokens) / static_cast<double>(stats.attended_heads), (96 + 205.5) / 2,
              8);
}

INSTANTIATE_TEST_SUITE_P(Methods, FullHeadsStep,
                         ::testing::Values("razor_attention:budget=96,sink=16", "oracle:budget=96,sink=3,recent=5",
                                           "freekv:budget=96,sink=8,recent=16,unit=page:8,dense=none,tau=-1"));

TEST(FullHeads, MustFitTheModel) {
  Recipe recipe = parse_recipe("duo_attention");
  recipe.full_heads = parse_full_heads("0 1\n", "f");
  EXPECT_FALSE(check(recipe, {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8}).empty());
  EXPECT_TRUE(check(recipe, {.n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8}).empty());
  Recipe drops = parse_recipe("snapkv");
  drops.full_heads = recipe.full_heads;
  EXPECT_FALSE(check(drops, {.n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8}).empty());
}

// A file is named in a recipe's text, and read again from it.
TEST(FullHeads, ARecipeNamesItsFile) {
  const std::string file = (std::filesystem::path(testing::TempDir()) / "full_heads_test.tsv").string();
  std::ofstream(file) << "1 0\n0 1\n";
  const Recipe recipe = parse_recipe("duo_attention:full_heads=" + file);
  ASSERT_TRUE(recipe.full_heads.has_value());
  EXPECT_THAT(recipe.full_heads->full, ElementsAre(1, 0, 0, 1));
  EXPECT_EQ(parse_recipe(print_recipe(recipe)), recipe);
  std::remove(file.c_str());
}

}  // namespace
}  // namespace mneme
