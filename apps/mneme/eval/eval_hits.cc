// mneme eval hits: what a device cache of some size would hold of what a method selects.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/eval/slot_hits.h"
#include "apps/mneme/eval/eval_bench.h"
#include "apps/mneme/eval/eval_commands.h"
#include "apps/mneme/eval/eval_measure.h"
#include "apps/mneme/options.h"

namespace mneme::cli {
namespace {

struct HitsCommand {
  EvalSetup setup{.tasks = {"number", "register"}, .contexts = 1};
  std::vector<std::string> methods = {"quest:unit=page:32", "freekv", "mneme"};
  std::vector<double> slots = {1, 1.25, 1.5, 2, 4, 8};
  KvOptions kv;
};

int run_hits(const HitsCommand& c) {
  check_eval_options(c.setup);
  EvalBench bench(c.setup);
  std::vector<eval::MethodHits> all;
  for (const std::string& text : c.methods) {
    const eval::MethodSpec spec = method_spec(text, c.kv);
    eval::SlotHitsObserver observer(c.slots);
    bench.engine().set_observer(&observer);
    bench.run(c.setup, {spec}, 0, "hits, contexts", [&](const eval::CellRecord&) { observer.forget_sequences(); });
    bench.engine().set_observer(nullptr);
    all.push_back({.method = spec.label, .hits = observer.hits()});
  }
  if (c.setup.json)
    fmt::print("{}\n",
               nlohmann::json{
                   {"origin", eval_origin()}, {"settings", eval_settings(c.setup)}, {"hits", eval::slot_hits_json(all)}}
                   .dump(1));
  else
    fmt::print("{}", eval::slot_hits_table(all));
  if (!c.setup.svg_file.empty()) write_text("--svg", c.setup.svg_file, eval::slot_hits_svg(all));
  return 0;
}

}  // namespace

void add_eval_hits(CLI::App& app, int& code) {
  CLI::App* c = app.add_subcommand("hits", "Count hits of a method's selections in device caches of several sizes");
  const auto o = std::make_shared<HitsCommand>();
  add_eval_options(*c, o->setup);
  add_method_list(*c, "--methods", o->methods, "Methods that select; settings as freekv:tau=0.6,pool=maxS");
  c->add_option("--slots", o->slots, "Cache slots, as multiples of a selection")
      ->delimiter(',')
      ->check(number(0, 1024))
      ->type_name("X,...")
      ->capture_default_str();
  add_kv_block_options(*c, o->kv);
  c->callback([o, &code] { code = run_hits(*o); });
}

}  // namespace mneme::cli
