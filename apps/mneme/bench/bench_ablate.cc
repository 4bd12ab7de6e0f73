// `mneme bench ablate`: what speculation and corrections are worth on this machine, at injected rates.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench/device/device_bench.h"
#include "apps/mneme/answer_writer.h"
#include "apps/mneme/bench/bench_commands.h"
#include "apps/mneme/bench/bench_report.h"
#include "apps/mneme/kv_options.h"
#include "apps/mneme/measured/bench_model.h"
#include "apps/mneme/options.h"
#include "apps/mneme/progress_bar.h"
#include "src/base/numa.h"
#include "src/recipes/compile.h"

namespace mneme::cli {
namespace {

struct AblateCommand {
  BenchModelOptions model;
  std::vector<std::int32_t> depths = {32768}, batches = {1};
  std::int32_t steps = 40;
  float turnover = 0.2f, correction = 0.13f;
  KvOptions kv;
  bool json = false, no_progress = false;
};

// One row of the table. The selection is FreeKV's in all of them: pages of 32 by their boxes, means of probabilities.
struct Part {
  const char *name, *method;
  bool drawn = true, corrected = false;
};
constexpr const char* kEveryStep = "quest:pool=meanS/unit=page:32";
constexpr std::array kParts = {
    Part{.name = "window: nothing is selected", .method = "window", .drawn = false},
    Part{.name = "one step ahead, heads corrected", .method = "freekv", .corrected = true},
    Part{.name = "one step ahead", .method = "freekv"},
    Part{.name = "in the step", .method = kEveryStep},
};

struct AblateLine {
  const Part* part;
  std::int32_t depth, batch;
  BenchResult result;
  double window_seconds;  // of the same depth and batch
};

std::string table_of(const AblateCommand& o, const std::vector<AblateLine>& rows) {
  std::string out = fmt::format(
      "turnover {:.2f}, corrections {:.2f}\n{:>8} {:>5}  {:<36} {:>9} {:>9} {:>8} {:>11} {:>9}\n", o.turnover,
      o.correction, "depth", "batch", "pages are selected", "ms/step", "p10", "window", "units", "MB/step");
  for (const AblateLine& row : rows)
    out += fmt::format("{:>8} {:>5}  {:<36} {:>9.3f} {:>9.3f} {:>7.2f}x {:>11.1f} {:>9.2f}\n", row.depth, row.batch,
                       row.part->name, 1e3 * row.result.step.median, 1e3 * row.result.step.p10,
                       row.result.step.median / row.window_seconds, row.result.recall.recalled_units,
                       row.result.recall.recalled_bytes / 1e6);
  return out;
}

std::string json_of(const AblateCommand& o, const DeviceBench& bench, const std::vector<AblateLine>& rows) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const AblateLine& row : rows)
    results.push_back({{"part", row.part->name},
                       {"method", row.part->method},
                       {"depth", row.depth},
                       {"batch", row.batch},
                       {"turnover", o.turnover},
                       {"correction", row.part->corrected ? o.correction : 0},
                       {"step_seconds", {{"median", row.result.step.median}, {"p10", row.result.step.p10}}},
                       {"times_window", row.result.step.median / row.window_seconds},
                       {"recalled_units", row.result.recall.recalled_units},
                       {"recalled_bytes", row.result.recall.recalled_bytes}});
  return device_test_json("ablate", bench.device(), bench_model_name(o.model), results);
}

BenchCase case_of(const AblateCommand& o, const Part& part, const MethodShape& shape, std::int32_t depth,
                  std::int32_t batch) {
  KvOptions kv = o.kv;
  if (!part.drawn) kv.overrides.clear();  // of blocks that it has none of
  std::string note;
  BenchCase c{.depth = depth, .batch = batch, .plan = compile(recipe_named(part.method, kv, &note), shape)};
  say_note(note);
  if (!part.drawn) return c;
  c.turnover = o.turnover;
  if (c.plan->gated()) c.correction = part.corrected ? o.correction : 0;
  return c;
}

int ablate(AblateCommand o) {
  // One set of dense layers for all: what `window` shows is then what selecting costs.
  if (!o.kv.dense_layers) o.kv.dense_layers = {{0}};
  if (!o.kv.budget) o.kv.budget = 2048;
  if (!o.kv.sink) o.kv.sink = 512;
  if (!o.kv.recent) o.kv.recent = 512;
  constexpr std::int32_t kWarmup = 4;
  const std::int64_t context = *std::max_element(o.depths.begin(), o.depths.end()) + kWarmup + o.steps;
  const std::unique_ptr<ThreadPool> threads = make_thread_pool(0, Pinning::kNone, NumaPolicy::kNone);
  const CpuContext cpu{.pool = threads.get()};
  ProgressBar bar(ProgressBar::mode_for_stderr(!o.no_progress));
  std::unique_ptr<Model> model = load_bench_model(o.model, context, cpu, {}, ShapeWeights::kNone);
  const MethodShape shape = bench_method_shape(model->config(), DType::kBF16);
  // Before any memory is asked for: what of the options the methods do not take.
  for (const Part& part : kParts) static_cast<void>(case_of(o, part, shape, o.depths[0], 1));
  const auto bench =
      device_benches().make(std::move(model), {.random = !o.model.shape.empty(),
                                               .mix = bench_weight_mix(o.model),
                                               .options = {.steps = o.steps, .warmup = kWarmup, .host_pages = true},
                                               .deepest = context,
                                               .most = *std::max_element(o.batches.begin(), o.batches.end())});
  std::vector<AblateLine> rows;
  const std::size_t total = o.depths.size() * o.batches.size() * kParts.size();
  for (const std::int32_t depth : o.depths)
    for (const std::int32_t batch : o.batches) {
      double window = 0;
      for (const Part& part : kParts) {
        bar.show("measuring, cases", rows.size(), total);
        const BenchResult r = bench->decode(case_of(o, part, shape, depth, batch));
        if (!part.drawn) window = r.step.median;
        rows.push_back({&part, depth, batch, r, window});
      }
    }
  bar.clear();
  AnswerWriter out;
  out.write(o.json ? json_of(o, *bench, rows) : table_of(o, rows));
  out.end_line();
  return 0;
}

}  // namespace

void add_bench_ablate(CLI::App& bench, int& code) {
  auto options = std::make_shared<AblateCommand>();
  CLI::App* c = bench.add_subcommand("ablate", "Ablate a recall: selection, speculation, corrections (needs a GPU)");
  add_bench_model_options(*c, options->model);
  c->add_option("--depth", options->depths, "Tokens in the KV cache before the first step (default 32768)")
      ->type_name("TOKENS,...")
      ->delimiter(',')
      ->transform(tokens(64, 1 << 24));
  c->add_option("--batch", options->batches, "Sequences of one step (default 1)")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(whole_number(1, 8));
  c->add_option("-n,--steps", options->steps, "Timed steps per case")
      ->capture_default_str()
      ->check(whole_number(1, 1 << 20));
  c->add_option("--turnover", options->turnover, "Share of the selected pages that a step replaces")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  c->add_option("--correction", options->correction, "Share of KV heads that the gate flags, where it is on")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  add_kv_block_options(*c, options->kv);
  c->add_flag("--json", options->json, "Print one JSON object");
  c->add_flag("--no-progress", options->no_progress, "No progress bar, and no line every 10 s without a terminal");
  c->callback([options, &code] { code = ablate(*options); });
}

}  // namespace mneme::cli
