// mneme eval ablate: the papers' ablations as named sets of methods.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/eval/ablation.h"
#include "apps/mneme/eval/eval_calibrate.h"
#include "apps/mneme/eval/eval_commands.h"
#include "apps/mneme/eval/eval_measure.h"
#include "apps/mneme/options.h"
#include "src/base/ratio.h"

namespace mneme::cli {
namespace {

struct AblationCommand {
  EvalSetup setup{.tasks = {"number", "password"}};
  std::vector<std::string> sets;
  std::int32_t budget = 512;
  KvOptions kv{.sink = 32, .recent = 128, .dense_layers = std::vector<std::int32_t>{}};
  std::optional<float> tau;
  double rate = 16;  // per cent; with tau alone
  std::string run_file;
};

// What an index reads for a score, against the keys themselves.
double load_ratio(const Plan& plan) {
  const AttentionShape shape = plan.shape.attention();
  return !plan.selects() ? 0 : ratio(2 * plan.index_bytes_per_token(), shape.token_bytes());
}

std::string index_table(const std::vector<eval::MethodSpec>& specs, const MethodShape& shape) {
  std::string out = "| method | index, of the keys' bytes |\n|---|---|\n";
  for (const eval::MethodSpec& s : specs) {
    const auto plan = compile(s.recipe, shape);
    if (plan->selects()) out += fmt::format("| {} | {:.1f} % |\n", s.label, 100 * load_ratio(*plan));
  }
  return out;
}

using Gates = std::map<std::string_view, eval::GateSetting>;

// Of every method whose gate the sets ask for.
Gates gates_of(const AblationCommand& c, EvalBench& bench, const std::vector<const eval::AblationSet*>& sets) {
  Gates gates;
  for (const auto* set : sets) {
    if (!set->needs_tau() || gates.contains(set->gate)) continue;
    if (c.tau) {
      gates[set->gate] = {*c.tau, c.rate / 100};
      continue;
    }
    EvalSetup setup = c.setup;
    setup.contexts = 1;
    KvOptions kv = c.kv;
    kv.budget = c.budget;
    const eval::Calibration found = calibrate_method(bench, setup, method_spec(std::string(set->gate), kv), {});
    gates[set->gate] = {found.tau(), found.rounds.back().rate};
  }
  return gates;
}

int run_ablate(const AblationCommand& c) {
  check_eval_options(c.setup);
  std::vector<const eval::AblationSet*> sets;
  for (const std::string& name : c.sets) sets.push_back(&eval::find_ablation(name));
  if (sets.empty())
    for (const eval::AblationSet& set : eval::ablation_table()) sets.push_back(&set);
  EvalBench bench(c.setup);
  Gates gates = gates_of(c, bench, sets);
  KvOptions kv = c.kv;
  kv.budget = c.budget;
  std::vector<eval::MethodSpec> specs = {method_spec("full", kv)};
  for (const auto* set : sets)
    for (const std::string& text : eval::ablation_methods(*set, gates[set->gate])) {
      eval::MethodSpec spec = method_spec(text, kv);
      if (std::none_of(specs.begin(), specs.end(), [&](const auto& s) { return s.label == spec.label; }))
        specs.push_back(std::move(spec));
    }
  const auto cells = eval::summarise(measure(bench, c.setup, specs, c.run_file));
  const MethodShape shape = bench.engine().method_shape();
  if (c.setup.json) {
    nlohmann::json methods = methods_json(specs);
    for (std::size_t i = 0; i < specs.size(); ++i)
      methods[i]["index_load_ratio"] = load_ratio(*compile(specs[i].recipe, shape));
    nlohmann::json settings = eval_settings(c.setup), all = nlohmann::json::array();
    settings["methods"] = methods;
    for (const auto* set : sets)
      settings["sets"].push_back({{"name", set->name}, {"summary", set->summary}, {"tau", gates[set->gate].tau}});
    for (const auto& cell : cells) all.push_back(eval::to_json(cell));
    fmt::print("{}\n", nlohmann::json{{"origin", eval_origin()}, {"settings", settings}, {"cells", all}}.dump(1));
  } else {
    for (const auto* set : sets) {
      const auto names = eval::ablation_methods(*set, gates[set->gate]);
      std::vector<eval::CellSummary> rows;
      for (const auto& cell : cells)
        if (cell.method == "full" || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
              return cell.method == method_spec(name, kv).label;
            }))
          rows.push_back(cell);
      fmt::print("{}: {}\n\n{}\n", set->name, set->summary, eval::table(rows));
      const std::string spread = eval::perplexity_table(rows);
      if (!spread.empty()) fmt::print("{}\n", spread);
    }
    fmt::print("{}", index_table(specs, shape));
  }
  if (!c.setup.svg_file.empty()) write_text("--svg", c.setup.svg_file, eval::plot_svg(cells));
  return 0;
}

std::string set_names() {
  std::string names;
  for (const eval::AblationSet& set : eval::ablation_table())
    names += (names.empty() ? "" : ", ") + std::string(set.name);
  return names;
}

}  // namespace

void add_eval_ablate(CLI::App& app, int& code) {
  CLI::App* c = app.add_subcommand("ablate", "Run the papers' ablations: named sets of methods");
  const auto o = std::make_shared<AblationCommand>();
  add_eval_options(*c, o->setup);
  c->add_option("--sets", o->sets, "Of: " + set_names() + " (default: all)")->delimiter(',')->type_name("NAME,...");
  c->add_option("--budget", o->budget, "Tokens that a step attends, all included")
      ->transform(tokens(1, 1 << 30))
      ->type_name("TOKENS")
      ->capture_default_str();
  c->add_option("--tau", o->tau, "Threshold of the gate (default: calibrated first, for 10 to 20 % corrections)")
      ->check(number(-1, 2))
      ->type_name("TAU");
  c->add_option("--rate", o->rate,
                "With --tau: percentage of decisions that it flags, for schedules of fixed intervals")
      ->check(number(0, 100))
      ->type_name("PER CENT")
      ->capture_default_str();
  c->add_option("--audit", o->setup.engine.audit_every,
                "Compute true attention too at every n-th step and selecting prefill window; 0: never")
      ->check(whole_number(0, 1000000))
      ->capture_default_str();
  c->add_option("--run", o->run_file, "Append a record per answer; an interrupted run resumes from it")
      ->type_name("FILE");
  add_kv_block_options(*c, o->kv);
  c->callback([o, &code] { code = run_ablate(*o); });
}

}  // namespace mneme::cli
