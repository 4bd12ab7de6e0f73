// mneme eval calibrate: the tau of a method's gate for this model. mneme eval similarity: how its queries move.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "apps/eval/figures/gate_replay.h"
#include "apps/eval/similarity.h"
#include "apps/mneme/eval/eval_calibrate.h"
#include "apps/mneme/eval/eval_commands.h"
#include "apps/mneme/eval/eval_measure.h"
#include "apps/mneme/options.h"
#include "src/base/error.h"
#include "src/base/ratio.h"

namespace mneme::cli {
namespace {

struct CalibrateCommand {
  EvalSetup setup{.tasks = {"number", "password", "where"}, .contexts = 2};
  std::string method = "freekv";
  KvOptions kv;
  std::vector<double> rates = {10, 20};
  double held = 0;  // percent of the attention; 0: calibrate by the rate
};

bool decisions_by_layer(const eval::Calibration& c, const MethodShape& shape) {
  for (std::int32_t l = 0; l < shape.n_layers; ++l)
    for (std::int32_t m = 1; m < shape.n_kv_heads; ++m)
      if (!c.last.values(l, m).empty()) return false;
  return shape.n_kv_heads > 1;
}

std::string calibration_table(const eval::Calibration& c, const MethodShape& shape) {
  std::string out = "| run | tau | corrected |\n|---|---|---|\n";
  for (std::size_t i = 0; i < c.rounds.size(); ++i)
    out += fmt::format("| {} | {} | {:.1f} % |\n", i + 1, c.rounds[i].tau, 100 * c.rounds[i].rate);
  // A gate that is asked once a layer has its decisions in the place of the first head.
  const bool by_layer = decisions_by_layer(c, shape);
  const std::int32_t n_heads = by_layer ? 1 : shape.n_kv_heads;
  out += fmt::format("\n{} in the last run, by {}\n\n| layer |", by_layer ? "Boundaries" : "Corrected",
                     by_layer ? "layer" : "KV head");
  std::string rule = "|---|";
  for (std::int32_t m = 0; m < n_heads; ++m) {
    out += by_layer ? " all heads |" : fmt::format(" head {} |", m);
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (std::int32_t l = 0; l < shape.n_layers; ++l) {
    if (c.last.values(l, 0).empty()) continue;
    out += fmt::format("| {} |", l);
    for (std::int32_t m = 0; m < n_heads; ++m)
      out += fmt::format(" {:.1f} % |", 100 * eval::correction_rate(c.last.values(l, m), c.tau()));
    out += "\n";
  }
  return out;
}

// 0.604f as 0.604, not as the nearest float spelled out.
double spelled(float tau) {
  return std::round(double{tau} * 1000) / 1000;
}

nlohmann::json calibration_json(const eval::Calibration& c, const MethodShape& shape) {
  nlohmann::json rounds = nlohmann::json::array(), heads = nlohmann::json::array();
  for (const eval::CalibrationRound& r : c.rounds)
    rounds.push_back({{"tau", spelled(r.tau)}, {"correction_rate", r.rate}});
  for (std::int32_t l = 0; l < shape.n_layers; ++l)
    for (std::int32_t m = 0; m < shape.n_kv_heads; ++m)
      if (!c.last.values(l, m).empty())
        heads.push_back({{"layer", l},
                         {"kv_head", m},
                         {"decisions", c.last.values(l, m).size()},
                         {"correction_rate", eval::correction_rate(c.last.values(l, m), c.tau())}});
  return {{"tau", spelled(c.tau())}, {"reached", c.reached}, {"runs", rounds}, {"heads", heads}};
}

// The options that run the method with the gate that was found.
std::string usage_of(const CalibrateCommand& c, float tau) {
  const MethodText method = parse_method(c.method);
  std::string fields;
  for (const std::string& list : {c.kv.overrides, method.settings})
    if (!list.empty()) fields += list + ",";
  std::string region;
  if (c.kv.budget) region += fmt::format("budget={},", *c.kv.budget);
  if (c.kv.sink) region += fmt::format("sink={},", *c.kv.sink);
  if (c.kv.recent) region += fmt::format("recent={},", *c.kv.recent);
  if (const auto& layers = c.kv.dense_layers)
    region += fmt::format("dense={},", layers->empty() ? "none" : fmt::format("{}", fmt::join(*layers, "+")));
  return fmt::format("--kv {}:{}{}tau={}", method.name, region, fields, spelled(tau));
}

// Gates of boundaries, replayed over full attention: tau by what kept selections hold.
std::vector<eval::GateReplay::Result> replay_taus(EvalBench& bench, const CalibrateCommand& c, const Recipe& recipe) {
  const auto* boundary = recipe.decode ? std::get_if<Boundary>(&recipe.decode->schedule) : nullptr;
  if (boundary == nullptr)
    fail(ErrorKind::kOption, "--held: {} keeps no selection over several steps; calibrate it by --rate", recipe.name);
  const auto* page = std::get_if<PageUnit>(&recipe.decode->units.prompt);
  eval::ReplayOptions o{
      .budget = recipe.budget, .sink = recipe.sink, .recent = recipe.recent, .intervals = {}, .shares = {}};
  o.units = {page != nullptr ? page->tokens : 1};
  o.taus = {-1, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 2};
  eval::GateReplayObserver observer(bench.engine().method_shape(), o);
  bench.engine().set_observer(&observer);
  bench.run(c.setup, {method_spec("full", {})}, 0, "calibrate, contexts",
            [&](const eval::CellRecord&) { observer.replay().forget_sequences(); });
  bench.engine().set_observer(nullptr);
  std::vector<eval::GateReplay::Result> results = observer.replay().results();
  const eval::ReplayGate gate =
      boundary->reference == GateReference::kPrevious ? eval::ReplayGate::kCosine : eval::ReplayGate::kCosineToLast;
  std::erase_if(results, [&](const auto& r) { return r.policy.gate != gate; });
  return results;
}

int run_calibrate_held(const CalibrateCommand& c) {
  EvalBench bench(c.setup);
  const auto results = replay_taus(bench, c, method_spec(c.method, c.kv).recipe);
  const auto found =
      std::find_if(results.begin(), results.end(), [&](const auto& r) { return 100 * r.held >= c.held; });
  if (found == results.end() || found->n == 0)
    fail(ErrorKind::kOption,
         "--held: no step of these contexts attends less than all; give longer ones or a smaller budget");
  const auto tau = static_cast<float>(found->policy.threshold);
  if (c.setup.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& r : results)
      rows.push_back({{"tau", spelled(static_cast<float>(r.policy.threshold))},
                      {"selected_again", ratio(r.selected, r.n)},
                      {"held", r.held},
                      {"held_worst_tenth", r.worst_tenth}});
    fmt::print("{}\n", nlohmann::json{{"origin", eval_origin()}, {"tau", spelled(tau)}, {"taus", rows}}.dump(1));
    return 0;
  }
  fmt::print("| tau | selected again | attention held | in the least tenth |\n|---|---|---|---|\n");
  for (const auto& r : results)
    fmt::print("| {:g} | {:.1f} % | {:.1f} % | {:.1f} % |\n", r.policy.threshold, 100 * ratio(r.selected, r.n),
               100 * r.held, 100 * r.worst_tenth);
  fmt::print("\ntau {:g} holds {:.1f} % of what a selection at every step attends\nUse it with: mneme run ... {}\n",
             tau, 100 * found->held, usage_of(c, tau));
  return 0;
}

int run_calibrate(const CalibrateCommand& c) {
  check_eval_options(c.setup);
  if (c.held > 0) return run_calibrate_held(c);
  if (c.rates.size() != 2 || !(c.rates[0] < c.rates[1]))
    fail(ErrorKind::kOption, "--rate: expected two per cents, the lower one first");
  const eval::MethodSpec spec = method_spec(c.method, c.kv);
  EvalBench bench(c.setup);
  const eval::Calibration result =
      calibrate_method(bench, c.setup, spec, {.lowest = c.rates[0] / 100, .highest = c.rates[1] / 100});
  const MethodShape shape = bench.engine().method_shape();
  if (c.setup.json) {
    nlohmann::json settings = eval_settings(c.setup);
    settings["methods"] = methods_json({spec});
    settings["tasks"] = c.setup.tasks;
    settings["lengths"] = c.setup.lengths;
    settings["contexts"] = c.setup.contexts;
    fmt::print("{}\n",
               nlohmann::json{
                   {"origin", eval_origin()}, {"settings", settings}, {"calibration", calibration_json(result, shape)}}
                   .dump(1));
  } else {
    fmt::print("{}", calibration_table(result, shape));
    fmt::print("\ntau {} {} {:.1f} % of {}{}\n", result.tau(),
               decisions_by_layer(result, shape) ? "finds boundaries in" : "corrects", 100 * result.rounds.back().rate,
               decisions_by_layer(result, shape) ? "steps and layers" : "KV heads",
               result.reached ? "" : ", which is not what was asked for: it did not settle");
    fmt::print("Use it with: mneme run ... {}\n", usage_of(c, result.tau()));
  }
  return result.reached ? 0 : 1;
}

struct SimilarityCommand {
  EvalSetup setup{.tasks = {"number", "where"}, .contexts = 2};
  eval::SimilarityOptions options;
};

int run_similarity(const SimilarityCommand& c) {
  check_eval_options(c.setup);
  EvalBench bench(c.setup);
  eval::SimilarityObserver observer(bench.engine().method_shape(), c.options);
  bench.engine().set_observer(&observer);
  bench.run(c.setup, {method_spec("full", {})}, 0, "similarity, contexts",
            [&](const eval::CellRecord&) { observer.forget_sequences(); });
  bench.engine().set_observer(nullptr);
  if (c.setup.json) {
    nlohmann::json settings = eval_settings(c.setup);
    settings["tasks"] = c.setup.tasks;
    settings["lengths"] = c.setup.lengths;
    settings["contexts"] = c.setup.contexts;
    fmt::print("{}\n",
               nlohmann::json{
                   {"origin", eval_origin()}, {"settings", settings}, {"similarity", eval::similarity_json(observer)}}
                   .dump(1));
  } else {
    fmt::print("{}", eval::similarity_tables(observer));
  }
  if (!c.setup.svg_file.empty()) write_text("--svg", c.setup.svg_file, eval::similarity_svg(observer));
  return 0;
}

}  // namespace

eval::Calibration calibrate_method(EvalBench& bench, const EvalSetup& o, const eval::MethodSpec& spec,
                                   const eval::CalibrationOptions& options) {
  // Contexts that no measured run shares: it numbers its own from 0.
  constexpr std::int64_t kFirstSample = 1'000'000;
  return eval::calibrate(spec.recipe, bench.engine().method_shape(), options,
                         [&](const Recipe& recipe, int round, eval::GateRecord& record) {
                           bench.engine().set_observer(&record);
                           bench.run(o, {{spec.label, recipe}}, kFirstSample + round * o.contexts,
                                     "calibrate, contexts", [](const eval::CellRecord&) {});
                           bench.engine().set_observer(nullptr);
                         });
}

void add_eval_calibrate(CLI::App& app, int& code) {
  CLI::App* c = app.add_subcommand("calibrate", "Find the tau of a gate for a share of corrections");
  const auto o = std::make_shared<CalibrateCommand>();
  add_eval_options(*c, o->setup);
  c->add_option("--method", o->method, "Method with a gate; overrides as freekv:gate_pool=max")
      ->type_name("NAME")
      ->capture_default_str();
  c->add_option(
       "--held", o->held,
       "With a boundary gate: the least tau whose kept selections hold this share of what selecting at every step "
       "attends, in percent, by true attention")
      ->check(number(0, 100));
  c->add_option("--rate", o->rates, "Accepted corrections, in percent of KV heads")
      ->delimiter(',')
      ->expected(2)
      ->check(number(0, 100))
      ->type_name("LOW,HIGH")
      ->capture_default_str();
  add_kv_block_options(*c, o->kv);
  c->callback([o, &code] { code = run_calibrate(*o); });
}

void add_eval_similarity(CLI::App& app, int& code) {
  CLI::App* c = app.add_subcommand("similarity", "Measure cosines of adjacent queries, and recall of indexes");
  const auto o = std::make_shared<SimilarityCommand>();
  add_eval_options(*c, o->setup);
  c->add_option("--every", o->options.recall_every, "Measure recall at every n-th token; 0: never")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
  c->add_option("--top", o->options.top, "Most attended tokens that recall counts")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  c->add_option("--boundary", o->options.boundary,
                "Mean cosine of a layer below which a segment ends, for the overlap of attended tokens")
      ->check(number(-1, 2))
      ->type_name("TAU")
      ->capture_default_str();
  c->add_option("--selected,--chosen", o->options.budgets, "Tokens that an index selects")
      ->delimiter(',')
      ->transform(tokens(1, 1 << 20))
      ->type_name("TOKENS,...")
      ->capture_default_str();
  c->callback([o, &code] { code = run_similarity(*o); });
}

}  // namespace mneme::cli
