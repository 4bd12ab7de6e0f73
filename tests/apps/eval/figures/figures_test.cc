// Figures: from records, and from a watched engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "apps/eval/figures/attention_map.h"
#include "apps/eval/figures/gate_replay.h"
#include "apps/eval/figures/key_statistics.h"
#include "apps/eval/figures/run_figures.h"
#include "apps/eval/report.h"
#include "apps/eval/runs/suite_table.h"
#include "tests/apps/cut_texts.h"
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

TEST(Figures, NoLabelIsCut) {
  // The rightmost point of `mneme eval --svg` read "fu".
  EXPECT_THAT(
      cut_texts(plot_svg(std::vector<PlotValue>{{"2048 tokens of context", "full", 4096, 100},
                                                {"2048 tokens of context", "a method of many words b256", 4000, 90}})),
      testing::IsEmpty());
  const std::string chart = line_chart_svg(
      {{.title = "hits",
        .x_title = "cache slots",
        .y_title = "hits, % of selected units",
        .series = {{"mean and mean deviation", {{1, 63.1}, {2, 77.5}}}, {std::string(90, 'n'), {{1, 1}}}}}});
  EXPECT_THAT(cut_texts(chart), testing::IsEmpty());
  EXPECT_THAT(chart, HasSubstr("viewBox=\"-"));
  EXPECT_THAT(cut_texts(heat_map_svg({{.title = std::string(80, 't'),
                                       .x_title = "layer",
                                       .y_title = "a title of rows",
                                       .columns = {"0"},
                                       .rows = {"freekv:pool=meanS/unit=page:32 b512"},
                                       .values = {{1.0}}}})),
              testing::IsEmpty());
}

// Titles of axes, of any length, and what every figure of the program says of itself.
TEST(Figures, NoTitleIsCut) {
  const std::string longer(70, 'y');
  EXPECT_THAT(cut_texts(line_chart_svg({{.title = longer,
                                         .x_title = longer,
                                         .y_title = longer,
                                         .series = {{longer, {{1, 1}, {2, 1e6}}}, {"b", {{1, 2}}}}},
                                        {.title = longer, .y_title = longer, .series = {{"c", {{0, 0}}}}}})),
              testing::IsEmpty());
  EXPECT_THAT(cut_texts(heat_map_svg({{.title = longer,
                                       .x_title = longer,
                                       .y_title = longer,
                                       .columns = {longer, "1"},
                                       .rows = {longer},
                                       .values = {{1.0, 0.0}}}})),
              testing::IsEmpty());
  EXPECT_THAT(cut_texts(heat_map_svg({layer_map(records(), "corrections"), layer_map(records(), "turnover")})),
              testing::IsEmpty());
  EXPECT_THAT(cut_texts(heat_map_svg(depth_maps(records()))), testing::IsEmpty());
  EXPECT_THAT(cut_texts(line_chart_svg({correction_chart(records())})), testing::IsEmpty());
  EXPECT_THAT(cut_texts(bar_chart_svg({.title = longer,
                                       .x_title = longer,
                                       .parts = {longer, "b"},
                                       .rows = {longer},
                                       .values = {{1, 1}},
                                       .marks = {1.5}})),
              testing::IsEmpty());
  const std::string suite = suite_svg(summarise_suite(records()));
  EXPECT_THAT(cut_texts(suite), testing::IsEmpty());
  EXPECT_THAT(suite, testing::AllOf(HasSubstr("freekv &lt;1&gt;"), testing::Not(HasSubstr("<1>"))));
}

// The test's own measure: a text at the right edge, one above the top, one below the bottom.
TEST(Figures, CutTextsAreFound) {
  const auto page = [](const std::string& text) { return "<svg viewBox=\"0 0 100 50\">" + text + "</svg>"; };
  EXPECT_THAT(cut_texts(page("<text x=\"80\" y=\"20\">full</text>")), ElementsAre("full"));
  EXPECT_THAT(cut_texts(page("<text x=\"20\" y=\"20\" text-anchor=\"end\">full</text>")), ElementsAre("full"));
  EXPECT_THAT(cut_texts(page("<text x=\"0\" y=\"4\">top</text>")), ElementsAre("top"));
  EXPECT_THAT(cut_texts(page("<text x=\"0\" y=\"51\">low</text>")), ElementsAre("low"));
  EXPECT_THAT(cut_texts(page("<text x=\"1\" y=\"20\">a &lt;b&gt; \u00e9</text>")), testing::IsEmpty());
  EXPECT_THAT(cut_texts(page("<text x='1' y='20'>other form</text>")), ElementsAre("a text that is not measured"));
}

// "norms, rope, swiglu" was written over "head".
TEST(Figures, NamesOfPartsStandSideBySide) {
  const std::string svg = bar_chart_svg({.title = "a step",
                                         .x_title = "ms",
                                         .parts = {"norms, rope, swiglu", "head", "all other operations of a step"},
                                         .rows = {"r"},
                                         .values = {{1, 1, 1}},
                                         .marks = {}});
  EXPECT_THAT(cut_texts(svg), testing::IsEmpty());
  const auto x_of = [&](const std::string& part) {
    const std::size_t tag = svg.rfind("<text", svg.find(">" + part + "<"));
    return std::stod(svg.substr(svg.find("x=\"", tag) + 3));
  };
  EXPECT_GT(x_of("head"), x_of("norms, rope, swiglu") + 0.6 * 11 * 19);
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

TEST(KeyStatistics, ExactPagesFindThemselvesAndEveryIndexItsShare) {
  const auto findings =
      index_findings({.head_dims = {64}, .tokens = 512, .queries = 2, .heads = 1, .top = 16, .budget = 128});
  ASSERT_EQ(findings.size() % 3, 0u);
  const std::size_t each = findings.size() / 3;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    SCOPED_TRACE(findings[i].index);
    EXPECT_GT(findings[i].bytes, 0);
    EXPECT_GE(findings[i].top_tokens, 0.1);
    EXPECT_LE(findings[i].top_tokens, 1);
    EXPECT_EQ(findings[i].index, findings[i % each].index) << "the same indexes for every statistic";
    if (i % each == 0) {
      EXPECT_EQ(findings[i].index, "exact, pages of 32");
      EXPECT_EQ(findings[i].top_pages, 1);
    }
  }
}

// One layer, one head of dimension 1, a sink, the current token, room for two tokens of the others.
std::vector<GateReplay::Result> replayed(ReplayOptions options, const std::vector<std::vector<float>>& masses,
                                         const std::vector<float>& queries) {
  options.budget = 4, options.sink = 1, options.recent = 1, options.units = {1};
  GateReplay replay(1, 1, options);
  for (std::size_t i = 0; i < masses.size(); ++i) replay.step(&options, 0, masses[i], std::span(&queries[i], 1), 1);
  return replay.results();
}

TEST(GateReplay, KeptSelectionsHoldWhatIsLeftOfTheirTokens) {
  // Tokens 1 and 2 are selected at first. The next step attends 3 and 4, and the one after it the first two again.
  const std::vector<std::vector<float>> masses = {{0.1f, 0.5f, 0.3f, 0.0f, 0.0f, 0.1f},
                                                  {0.1f, 0.1f, 0.0f, 0.4f, 0.3f, 0.0f, 0.1f},
                                                  {0.1f, 0.5f, 0.3f, 0.0f, 0.0f, 0.0f, 0.0f, 0.1f}};
  // The query turns at the last step alone, where nothing has to be selected again.
  const auto results = replayed({.taus = {0}, .intervals = {2}, .shares = {0.5, 0.2}}, masses, {1, 1, -1});
  ASSERT_EQ(results.size(), 5u) << "the step before, the last selection, an interval, two shares";
  for (const std::size_t cosine : {0, 1, 2}) {
    EXPECT_EQ(results[cosine].selected, 1) << "at the third step";
    EXPECT_EQ(results[cosine].n, 2);
    EXPECT_NEAR(results[cosine].held, (0.3 / 0.9 + 1) / 2, 1e-6);
    EXPECT_NEAR(results[cosine].worst_tenth, 0.3 / 0.9, 1e-6);
    ASSERT_EQ(results[cosine].along.size(), 3u);
    EXPECT_NEAR(results[cosine].along[1], 0.3 / 0.9, 1e-6);
  }
  EXPECT_EQ(results[3].selected, 2) << "0.33 and 0.22 are less than a half";
  EXPECT_EQ(results[3].held, 1);
  EXPECT_EQ(results[4].selected, 0) << "0.33 is more than 0.2, and the first selection is right again";
  EXPECT_NEAR(results[4].held, (0.3 / 0.9 + 1) / 2, 1e-6);
}

TEST(GateReplay, FewTokensAreAllAttendedAndNotCounted) {
  const auto results =
      replayed({.taus = {2}, .intervals = {}, .shares = {}}, {{0.5f, 0.5f}, {0.4f, 0.3f, 0.3f}}, {1, 1});
  EXPECT_EQ(results[0].n, 0);
  EXPECT_EQ(results[0].held, 0);
  EXPECT_EQ(replay_charts(results).size(), 3u);
}

TEST(GateReplay, WatchesAnEngine) {
  TinyEngine tiny;
  ReplayOptions options{
      .budget = 64, .sink = 8, .recent = 16, .units = {4}, .taus = {-1, 2}, .intervals = {}, .shares = {0.95}};
  GateReplayObserver observer(tiny.engine->method_shape(), options);
  tiny.engine->set_observer(&observer);
  tiny.answer(TinyEngine::random_tokens(200, 1), 12, nullptr);
  tiny.engine->set_observer(nullptr);
  const auto results = observer.replay().results();
  ASSERT_EQ(results.size(), 5u);
  EXPECT_EQ(results[0].n, 11 * tiny.engine->method_shape().n_layers * tiny.engine->method_shape().n_kv_heads);
  EXPECT_EQ(results[0].selected, 0) << "tau -1 keeps the first selection";
  EXPECT_EQ(results[1].selected, results[1].n) << "tau 2 selects at every step";
  EXPECT_EQ(results[1].held, 1);
  EXPECT_LT(results[0].held, 1);
  EXPECT_GE(results[4].worst_tenth, 0.95 - 1e-6) << "the mass gate holds what it is asked to";
}

}  // namespace
}  // namespace mneme::eval
