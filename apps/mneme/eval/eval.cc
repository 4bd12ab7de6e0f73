// mneme eval: what answers lose, and what they save, when they attend a part of the context.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/eval/report.h"
#include "apps/mneme/companion/companion.h"
#include "apps/mneme/eval/eval_commands.h"
#include "apps/mneme/eval/eval_measure.h"
#include "apps/mneme/eval/eval_suite.h"
#include "apps/mneme/model_source.h"
#include "apps/mneme/options.h"
#include "apps/mneme/rank_options.h"
#include "src/base/error.h"

namespace mneme::cli {
namespace {

struct EvalCommand {
  EvalSetup setup{.tasks = {"number", "password", "where"}};
  std::vector<std::string> methods = {"full", "window", "oracle", "quest", "freekv", "fier"};
  std::vector<std::int32_t> budgets = {512};
  KvOptions kv;
  std::string run_file;
  SuiteCommand suite;
  RankOptions ranks;
  bool methods_given = false, budgets_given = false;
};

// Every method under every budget; `full` once.
std::vector<eval::MethodSpec> specs_of(const EvalCommand& c) {
  std::vector<eval::MethodSpec> specs;
  for (const std::string& text : c.methods)
    for (std::int32_t budget : c.budgets) {
      KvOptions kv = c.kv;
      kv.budget = budget;
      specs.push_back(method_spec(text, kv));
      if (specs.back().recipe.attend == Attend::kEverything || specs.back().recipe.norm) break;  // no budget to set
    }
  return specs;
}

// Methods and budgets of the paper, where none were given.
EvalCommand with_paper(EvalCommand c) {
  if (c.suite.paper.empty()) return c;
  const eval::PaperEntry& paper = eval::find_paper(c.suite.paper);
  if (!c.methods_given) c.methods.assign(paper.methods.begin(), paper.methods.end());
  if (!c.budgets_given) c.budgets.assign(paper.budgets.begin(), paper.budgets.end());
  return c;
}

// --kv-budget, which other commands take, is one budget of --budgets.
EvalCommand with_budget(EvalCommand c) {
  if (!c.kv.budget) return c;
  if (c.budgets_given) fail(ErrorKind::kOption, "--kv-budget and --budgets: expected one of the two");
  c.budgets = {*c.kv.budget};
  c.budgets_given = true;
  return c;
}

int run_eval(const EvalCommand& given) {
  const EvalCommand c = with_paper(with_budget(given));
  const std::unique_ptr<RankGroup> ranks = join_ranks(c.ranks, c.setup.engine);
  if (ranks && !ranks->leads()) return follow_leader(*ranks, model_file(c.setup.model, false), c.setup.engine);
  if (!c.suite.suite.empty()) {
    run_suite(c.setup, c.suite, specs_of(c), c.run_file);
    return 0;
  }

  check_eval_options(c.setup);
  const std::vector<eval::MethodSpec> specs = specs_of(c);
  EvalBench bench(c.setup);
  const auto cells = eval::summarise(measure(bench, c.setup, specs, c.run_file));
  if (c.setup.json) {
    nlohmann::json out = {{"origin", eval_origin()}, {"settings", eval_settings(c.setup)}};
    out["settings"]["audit"] = c.setup.engine.audit_every;
    out["settings"]["methods"] = methods_json(specs);
    for (const auto& cell : cells) out["cells"].push_back(eval::to_json(cell));
    fmt::print("{}\n", out.dump(1));
  } else {
    fmt::print("{}", eval::table(cells));
  }
  if (!c.setup.svg_file.empty()) write_text("--svg", c.setup.svg_file, eval::plot_svg(cells));
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, int& code) {
  CLI::App* c = app.add_subcommand(std::string(kEvalCompanion.command), std::string(kEvalCompanion.summary));
  const auto o = std::make_shared<EvalCommand>();
  add_eval_options(*c, o->setup);
  add_method_list(*c, "--methods", o->methods,
                  "KV methods, with settings as freekv:tau=0.9,pool=maxS (mneme methods lists them)");
  c->add_option("--budgets", o->budgets, "Tokens that a step attends, all included")
      ->delimiter(',')
      ->transform(tokens(1, 1 << 30))
      ->type_name("TOKENS,...")
      ->capture_default_str();
  c->add_option("--audit", o->setup.engine.audit_every, "Compute true attention too at every n-th step; 0: never")
      ->check(whole_number(0, 1000000))
      ->capture_default_str();
  c->add_option("--run", o->run_file, "Append a record per answer; an interrupted run resumes from it")
      ->type_name("FILE");
  add_suite_options(*c, o->suite);
  add_rank_options(*c, o->ranks);
  add_kv_block_options(*c, o->kv);
  add_eval_ablate(*c, code);
  add_eval_calibrate(*c, code);
  add_eval_figure(*c, code);
  add_eval_hits(*c, code);
  add_eval_merge(*c, code);
  add_eval_similarity(*c, code);
  c->require_subcommand(0, 1);
  c->callback([c, o, &code] {
    if (!c->get_subcommands().empty()) return;
    o->suite.question_given = c->count("--question") > 0;
    o->suite.tasks_given = c->count("--tasks") > 0;
    o->suite.contexts_given = c->count("--contexts") > 0;
    o->methods_given = c->count("--methods") > 0;
    o->budgets_given = c->count("--budgets") > 0;
    code = run_eval(*o);
  });
}

}  // namespace mneme::cli
