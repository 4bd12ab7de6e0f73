// mneme eval figure: the papers' pictures.
#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "apps/eval/figures/attention_map.h"
#include "apps/eval/figures/gate_replay.h"
#include "apps/eval/figures/key_statistics.h"
#include "apps/eval/figures/run_figures.h"
#include "apps/eval/runs/run_file.h"
#include "apps/eval/runs/suite_table.h"
#include "apps/eval/similarity.h"
#include "apps/mneme/eval/eval_bench.h"
#include "apps/mneme/eval/eval_commands.h"
#include "apps/mneme/options.h"
#include "src/base/error.h"
#include "src/base/ratio.h"

namespace mneme::cli {
namespace {

struct FigureCommand {
  std::string name;
  std::vector<std::string> runs;
  EvalSetup setup{.tasks = {"number"}, .contexts = 1};
  eval::AttentionMapOptions attention;
  eval::ReplayOptions replay;
  eval::KeyStatisticsOptions keys;
};

std::vector<std::string> numbers_to(std::int32_t n) {
  std::vector<std::string> all;
  for (std::int32_t i = 0; i < n; ++i) all.push_back(std::to_string(i));
  return all;
}

nlohmann::json map_json(const eval::HeatMap& m) {
  nlohmann::json values = nlohmann::json::array();
  for (const auto& row : m.values) {
    values.push_back(nlohmann::json::array());
    for (double v : row) values.back().push_back(std::isnan(v) ? nlohmann::json() : nlohmann::json(v));
  }
  return {{"title", m.title}, {"columns", m.columns}, {"rows", m.rows}, {"values", values}};
}

nlohmann::json chart_json(const eval::LineChart& c) {
  nlohmann::json series = nlohmann::json::array();
  for (const eval::Series& s : c.series) series.push_back({{"name", s.name}, {"points", s.points}});
  return {{"title", c.title}, {"x", c.x_title}, {"y", c.y_title}, {"series", series}};
}

struct Drawn {
  nlohmann::json data;
  std::string svg;
};

Drawn drawn(const std::vector<eval::HeatMap>& maps) {
  nlohmann::json data = nlohmann::json::array();
  for (const auto& m : maps) data.push_back(map_json(m));
  return {data, eval::heat_map_svg(maps)};
}
Drawn drawn(const std::vector<eval::LineChart>& charts) {
  nlohmann::json data = nlohmann::json::array();
  for (const auto& c : charts) data.push_back(chart_json(c));
  return {data, eval::line_chart_svg(charts)};
}

// A map by layer and head of what `value` says.
template <typename F>
eval::HeatMap head_map(const std::string& title, std::int32_t layers, std::int32_t heads, F&& value) {
  eval::HeatMap map{
      .title = title, .x_title = "head", .y_title = "layer", .columns = numbers_to(heads), .rows = numbers_to(layers)};
  for (std::int32_t l = 0; l < layers; ++l) {
    map.values.emplace_back();
    for (std::int32_t h = 0; h < heads; ++h) map.values.back().push_back(value(l, h));
  }
  return map;
}

// Full attention over the tasks' contexts, watched.
void watch(const FigureCommand& c, EvalBench& bench, DecodeObserver& observer, const std::function<void()>& after) {
  bench.engine().set_observer(&observer);
  bench.run(c.setup, {method_spec("full", {})}, 0, "figure, contexts", [&](const eval::CellRecord&) { after(); });
  bench.engine().set_observer(nullptr);
}

Drawn similarity_figure(const FigureCommand& c, bool recall) {
  EvalBench bench(c.setup);
  eval::SimilarityObserver observer(bench.engine().method_shape(), {.recall_every = recall ? c.attention.every : 0});
  watch(c, bench, observer, [&] { observer.forget_sequences(); });
  if (!recall)
    return drawn({head_map("cosine of adjacent queries, mean", observer.shape().n_layers, observer.shape().n_heads,
                           [&](std::int32_t l, std::int32_t h) {
                             double sum = 0;
                             for (float v : observer.cosines(l, h)) sum += v;
                             return ratio(sum, observer.cosines(l, h).size());
                           })});
  eval::LineChart chart{.title = fmt::format("recall of the {} most attended tokens", observer.options().top),
                        .x_title = "tokens selected",
                        .y_title = "share"};
  for (const auto& r : observer.recalls()) {
    eval::Series s{.name = r.index};
    for (std::size_t b = 0; b < r.of.size(); ++b) s.points.emplace_back(observer.options().budgets[b], r.of[b]);
    chart.series.push_back(std::move(s));
  }
  return drawn(std::vector{chart});
}

Drawn attention_figure(FigureCommand c) {
  // The input is what a document's tokens attend, so that the whole context goes through decode.
  if (c.name == "sparsity-input") c.setup.tasks = {std::string(eval::Runner::kStream)};
  EvalBench bench(c.setup);
  eval::AttentionMapObserver observer(bench.engine().method_shape(), c.attention);
  watch(c, bench, observer, [] {});
  const MethodShape& shape = observer.shape();
  if (c.name != "scores")
    return drawn({head_map(fmt::format("share of tokens that hold {:.0f} % of the attention", 100 * c.attention.mass),
                           shape.n_layers, shape.n_heads,
                           [&](std::int32_t l, std::int32_t h) { return observer.share(l, h); })});
  eval::LineChart chart{.title = "one-bit keys against exact scores",
                        .x_title = "exact",
                        .y_title = "estimated",
                        .series = {{.name = "tokens", .points = {observer.pairs().begin(), observer.pairs().end()}}},
                        .lines = false};
  Drawn out = drawn(std::vector{chart});
  out.data.push_back(map_json(head_map("correlation of estimated and exact scores", shape.n_layers, shape.n_kv_heads,
                                       [&](std::int32_t l, std::int32_t h) { return observer.correlation(l, h); })));
  return out;
}

Drawn gates_figure(const FigureCommand& c) {
  for (const std::int32_t unit : c.replay.units)
    if (const char* reason = check_region({c.replay.budget, c.replay.sink, c.replay.recent, unit, unit}))
      fail(ErrorKind::kOption, "figure gates: {}", reason);
  EvalBench bench(c.setup);
  eval::GateReplayObserver observer(bench.engine().method_shape(), c.replay);
  watch(c, bench, observer, [&] { observer.replay().forget_sequences(); });
  const auto results = observer.replay().results();
  Drawn out = drawn(eval::replay_charts(results));
  for (const auto& r : results)
    out.data.push_back({{"unit", r.policy.unit},
                        {"gate", eval::gate_name(r.policy.gate)},
                        {"threshold", r.policy.threshold},
                        {"n", r.n},
                        {"selected_again", ratio(r.selected, r.n)},
                        {"held", r.held},
                        {"held_worst_tenth", r.worst_tenth}});
  return out;
}

// No model: random keys. A chart a head size and statistic of what indexes find against their bytes.
Drawn keys_figure(const FigureCommand& c) {
  std::vector<eval::LineChart> charts;
  nlohmann::json data = nlohmann::json::array();
  for (const eval::IndexFinding& f : eval::index_findings(c.keys)) {
    const std::string title = fmt::format("D = {}, {} keys", f.head_dim, eval::statistics_name(f.statistics));
    if (charts.empty() || charts.back().title != title)
      charts.push_back({.title = title, .x_title = "bytes of 32 tokens", .y_title = "of the best tokens, %"});
    const bool exact = f.index.starts_with("exact");
    if (!exact) charts.back().series.push_back({.name = f.index, .points = {{f.bytes, 100 * f.top_tokens}}});
    data.push_back({{"head_dim", f.head_dim},
                    {"statistics", eval::statistics_name(f.statistics)},
                    {"index", f.index},
                    {"bytes", f.bytes},
                    {"top_tokens", f.top_tokens},
                    {"half_width_95", 1.96 * f.deviation},
                    {"top_pages", f.top_pages < 0 ? nlohmann::json() : nlohmann::json(f.top_pages)}});
  }
  return {data, eval::line_chart_svg(charts)};
}

Drawn run_figure(const FigureCommand& c) {
  if (c.runs.empty()) fail(ErrorKind::kOption, "figure {} is drawn from --runs FILE of mneme eval --suite", c.name);
  const std::vector<eval::SuiteRecord> records = eval::merge_runs(c.runs).records;
  if (c.name == "depth") return drawn(eval::depth_maps(records));
  if (c.name == "corrections-along") return drawn(std::vector{eval::correction_chart(records)});
  if (c.name == "bytes") {
    const eval::SuiteSummary summary = eval::summarise_suite(records);
    return {eval::suite_json(summary), eval::suite_svg(summary)};
  }
  return drawn(std::vector{eval::layer_map(records, c.name)});
}

int run_figure_command(const FigureCommand& c) {
  if (c.name == "latency")
    fail(ErrorKind::kOption,
         "figure latency: mneme bench decode --device cuda --svg FILE times the phases of a step and draws them");
  const bool watched = c.name == "similarity" || c.name == "recall" || c.name == "scores" ||
                       c.name == "sparsity-input" || c.name == "sparsity-output" || c.name == "gates";
  if (watched) check_eval_options(c.setup);
  const Drawn d = c.name == "similarity" || c.name == "recall" ? similarity_figure(c, c.name == "recall")
                  : c.name == "gates"                          ? gates_figure(c)
                  : c.name == "keys"                           ? keys_figure(c)
                  : watched                                    ? attention_figure(c)
                                                               : run_figure(c);
  if (!c.setup.svg_file.empty()) write_text("--svg", c.setup.svg_file, d.svg);
  if (c.setup.json || c.setup.svg_file.empty())
    fmt::print("{}\n", nlohmann::json{{"figure", c.name}, {"origin", eval_origin()}, {"data", d.data}}.dump(1));
  return 0;
}

}  // namespace

void add_eval_figure(CLI::App& eval, int& code) {
  CLI::App* c = eval.add_subcommand("figure", "Draw the papers' figures, as SVG or as numbers");
  const auto o = std::make_shared<FigureCommand>();
  c->add_option("name", o->name,
                "With a model: similarity, recall, scores, gates, sparsity-input, sparsity-output; without one: keys; "
                "from --runs: corrections, "
                "corrections-along, budget, turnover, depth, bytes")
      ->required()
      ->check(one_of({"similarity", "recall", "scores", "gates", "keys", "sparsity-input", "sparsity-output",
                      "corrections", "corrections-along", "budget", "turnover", "depth", "bytes", "latency"}))
      ->type_name("NAME");
  add_eval_options(*c, o->setup);
  c->add_option("--runs", o->runs, "Records of mneme eval --suite --run")->type_name("FILE");
  c->add_option("--every", o->attention.every, "Measure every n-th token")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  c->add_option("--mass", o->attention.mass, "Attention mass that the tokens of a sparsity map hold")
      ->check(number(0, 1))
      ->capture_default_str();
  const auto add_tokens = [&](const char* name, std::int32_t& value, const char* help) {
    c->add_option(name, value, help)->check(whole_number(0, 1 << 20))->capture_default_str();
  };
  add_tokens("--kv-budget", o->replay.budget, "Tokens that a replayed selection leaves (gates)");
  add_tokens("--kv-sink", o->replay.sink, "First tokens, always attended (gates)");
  add_tokens("--kv-recent", o->replay.recent, "Last tokens, always attended (gates)");
  c->callback([o, &code] { code = run_figure_command(*o); });
}

}  // namespace mneme::cli
