// Figures: from records, and from a watched engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "apps/eval/figures/attention_map.h"
#include "apps/eval/figures/run_figures.h"
#include "tests/apps/eval/tiny_engine.h"

namespace mneme::eval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<SuiteRecord> records() {
  SuiteRecord full{.context = 0, .task = "niah", .length = 1024, .method = "full"};
  full.answers = {{.id = "0", .scores = {1}, .depth = 0}, {.id = "1", .scores = {0, 1}, .depth = 1}};
  full.layers = {{.attended = 100, .attended_heads = 2}, {.attended = 60, .attended_heads = 2}};
  SuiteRecord gated = full;
  gated.method = "freekv <1>";
  gated.layers = {{.attended = 20, .attended_heads = 2},
                  {.attended = 10, .attended_heads = 2, .checks = 8, .corrections = 2, .selected = 10, .replaced = 4}};
  gated.along = {{.tokens = 10, .checks = 10, .corrections = 5}, {.tokens = 20, .checks = 30, .corrections = 10}};
  return {full, gated};
}

TEST(Figures, LayersAreColumnsAndMethodsRows) {
  const HeatMap budget = layer_map(records(), "budget");
  EXPECT_THAT(budget.rows, ElementsAre("full", "freekv <1>"));
  EXPECT_THAT(budget.columns, ElementsAre("0", "1"));
  EXPECT_THAT(budget.values[0], ElementsAre(50, 30));
  EXPECT_EQ(budget.high, 50);
  const HeatMap corrections = layer_map(records(), "corrections");
  ASSERT_THAT(corrections.rows, ElementsAre("freekv <1>")) << "a method without a gate has no row";
  EXPECT_TRUE(std::isnan(corrections.values[0][0]));
  EXPECT_EQ(corrections.values[0][1], 25);
  EXPECT_EQ(layer_map(records(), "turnover").values[0][1], 40);
}

TEST(Figures, CorrectionsAlongAnswersAreThoseSinceThePointBefore) {
  const LineChart chart = correction_chart(records());
  ASSERT_EQ(chart.series.size(), 1u);
  EXPECT_THAT(chart.series[0].points, ElementsAre(std::pair(10.0, 50.0), std::pair(20.0, 25.0)));
}

TEST(Figures, DepthsAreMeansOfScores) {
  const auto maps = depth_maps(records());
  ASSERT_EQ(maps.size(), 2u);
  EXPECT_EQ(maps[0].at(0, 0), 1);
  EXPECT_EQ(maps[0].at(0, 9), 0.5);
  EXPECT_TRUE(std::isnan(maps[0].at(0, 5)));
}

TEST(Figures, BarsStackTheirParts) {
  const std::string svg = bar_chart_svg({.title = "a step",
                                         .x_title = "ms",
                                         .parts = {"GEMM", "attend & <co>"},
                                         .rows = {"full", "window"},
                                         .values = {{3, 1}, {1, 1}},
                                         .marks = {3.5, 2}});
  EXPECT_THAT(svg, HasSubstr("attend &amp; &lt;co&gt;: 1<"));
  // 520 pixels are 4 ms: the second part of the first row begins at 3 ms; the mark is at 3.5.
  EXPECT_THAT(svg, HasSubstr("<rect x=\"610.0\" y=\"50.0\" width=\"130.0\""));
  EXPECT_THAT(svg, HasSubstr("<line x1=\"675.0\" x2=\"675.0\""));
  EXPECT_THAT(svg, HasSubstr("<rect x=\"350.0\" y=\"78.0\" width=\"130.0\"")) << "the second row";
  EXPECT_THAT(bar_chart_svg({.title = "nothing"}), testing::StartsWith("<svg"));
}

TEST(Figures, PicturesEscapeTheirText) {
  const std::string map = heat_map_svg({layer_map(records(), "budget")});
  EXPECT_THAT(map, testing::StartsWith("<svg"));
  EXPECT_THAT(map, HasSubstr("freekv &lt;1&gt;"));
  EXPECT_THAT(map, testing::Not(HasSubstr("<1>")));
  EXPECT_THAT(line_chart_svg({correction_chart(records())}), HasSubstr("<polyline"));
  EXPECT_THAT(line_chart_svg({LineChart{.title = "empty"}}), HasSubstr("empty"));
}

TEST(AttentionMap, CountsTokensThatHoldTheMassAndComparesScores) {
  TinyEngine tiny;
  AttentionMapObserver half(tiny.engine->method_shape(), {.every = 1, .mass = 0.5}),
      all(tiny.engine->method_shape(), {.every = 1, .mass = 1.0});
  EXPECT_TRUE(std::isnan(half.share(0, 0)));
  tiny.engine->set_observer(&half);
  tiny.answer(TinyEngine::random_tokens(200, 1), 24, nullptr);
  tiny.engine->set_observer(&all);
  tiny.answer(TinyEngine::random_tokens(200, 1), 24, nullptr);
  tiny.engine->set_observer(nullptr);
  EXPECT_EQ(half.steps(), 24);
  const MethodShape& shape = half.shape();
  for (std::int32_t l = 0; l < shape.n_layers; ++l) {
    for (std::int32_t h = 0; h < shape.n_heads; ++h) {
      EXPECT_GT(half.share(l, h), 0);
      EXPECT_LE(half.share(l, h), 0.5) << "the most attended half holds half of the mass at least";
      EXPECT_GE(all.share(l, h), half.share(l, h));
    }
    for (std::int32_t h = 0; h < shape.n_kv_heads; ++h) EXPECT_GT(half.correlation(l, h), 0.5);
  }
  EXPECT_FALSE(half.pairs().empty());
}

}  // namespace
}  // namespace mneme::eval
