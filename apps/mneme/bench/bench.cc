// mneme bench: how long steps take, and how long they would take at least.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/device/device_bench.h"
#include "apps/bench/timed/trace.h"
#include "apps/mneme/answer_writer.h"
#include "apps/mneme/bench/bench_commands.h"
#include "apps/mneme/bench/bench_report.h"
#include "apps/mneme/companion/companion.h"
#include "apps/mneme/kv_options.h"
#include "apps/mneme/measured/bench_model.h"
#include "apps/mneme/options.h"
#include "apps/mneme/progress_bar.h"
#include "apps/mneme/rank_options.h"
#include "src/base/error.h"
#include "src/base/numa.h"
#include "src/engine/forward_backend.h"
#include "src/engine/kv_method.h"
#include "src/engine/kv_plan.h"
#include "src/engine/ranks/rank_pass.h"
#include "src/recipes/compile.h"

namespace mneme::cli {
namespace {

struct CaseOptions {
  std::vector<std::int32_t> depths, batches = {1};
  int steps = 64, warmup = 4, chunk_tokens = 1024;
  std::vector<float> turnovers, corrections;
};

struct MachineOptions {
  std::string device = "cpu";
  std::string kv_store = "device", kv_dtype = "bf16";
  int gpu_layers = kAutoGpuLayers;  // all
  int threads = 0;
  bool no_pin = false, deterministic = false;
  std::string numa = "none";
};

struct OutputOptions {
  bool json = false, no_progress = false, phases = false;
  std::string trace, svg;
};

struct BenchCommand {
  bool decode = true;
  BenchModelOptions model;
  CaseOptions cases;
  KvOptions kv;
  std::vector<std::string> methods;
  MachineOptions machine;
  RankOptions ranks;
  OutputOptions output;
};

std::string test_name(const BenchCommand& o, std::int32_t depth) {
  return o.decode ? fmt::format("tg{} @ d{}", o.cases.steps, depth) : fmt::format("pp{}", depth);
}

// What is asked of plain full attention needs no method; everything else is compiled.
std::shared_ptr<const Plan> plan_of(const std::string& method, const KvOptions& kv, const MethodShape& shape) {
  std::string note;
  const Recipe recipe = recipe_named(method, kv, &note);
  say_note(note);
  return recipe.attend == Attend::kEverything ? nullptr : compile(recipe, shape);
}

std::vector<BenchLine> cases_of(const BenchCommand& o, const MethodShape& shape) {
  std::vector<BenchLine> rows;
  for (const std::string& method : o.methods) {
    const std::shared_ptr<const Plan> plan = plan_of(method, o.kv, shape);
    if (o.ranks.size() > 1 && plan != nullptr) expect_ranks_do(*plan, RankSplit::kHeads);
    // Outcomes are drawn for methods that have them.
    const std::vector<float> as_it_is = {-1};
    const bool selects = plan != nullptr && plan->selects() && (o.decode || plan->layer_selection);
    const auto& turnovers = selects && !o.cases.turnovers.empty() ? o.cases.turnovers : as_it_is;
    const auto& corrections = selects && plan->gated() && !o.cases.corrections.empty() ? o.cases.corrections : as_it_is;
    for (const std::int32_t batch : o.cases.batches)
      for (const std::int32_t depth : o.cases.depths)
        for (const float turnover : turnovers)
          for (const float correction : corrections)
            rows.push_back(
                {.test = test_name(o, depth),
                 .method = method,
                 .c = {.depth = depth, .batch = batch, .plan = plan, .turnover = turnover, .correction = correction},
                 .result = {}});
  }
  return rows;
}

void write_trace(const BenchCommand& o, const std::vector<BenchLine>& rows) {
  std::vector<NamedTrace> traces;
  for (const BenchLine& row : rows)
    traces.push_back(
        {.name = fmt::format("{}, batch {}, {}", row.test, row.c.batch, row.method), .steps = row.result.trace});
  write_chrome_trace(o.output.trace, traces);
}

// Everything that the command says of the report.
BenchReport report_of(const BenchCommand& o, const Machine& machine, const ModelConfig& config, int threads) {
  const DType kv_dtype = kv_dtype_of({.kv_cache_dtype = parse_kv_dtype(o.machine.kv_dtype)});
  return {.decode = o.decode,
          .model = bench_model_name(o.model),
          .machine = machine,
          .parameters = parameter_count(config),
          .weights = "",
          .kv_dtype = o.machine.kv_dtype,
          .kv_store = o.machine.device == "cuda" ? o.machine.kv_store : "host",
          .threads = threads,
          .deterministic = o.machine.deterministic,
          .steps = o.cases.steps,
          .warmup = o.cases.warmup,
          .chunk_tokens = o.cases.chunk_tokens,
          .rows = cases_of(o, bench_method_shape(config, kv_dtype))};
}

template <typename AnyBench>
void run_cases(const BenchCommand& o, AnyBench& bench, BenchReport& report, const ProgressFn& show) {
  std::int64_t done = 0;
  for (BenchLine& row : report.rows) {
    show("measuring, cases", done++, std::ssize(report.rows));
    row.result = o.decode ? bench.decode(row.c) : bench.prefill(row.c);
  }
}

BenchReport bench_cpu(const BenchCommand& o, const Machine& machine, std::unique_ptr<Model> model,
                      const CpuContext& cpu, const BenchOptions& options, const ProgressFn& show) {
  BenchReport report = report_of(o, machine, model->config(), cpu.pool->size());
  report.weight_bytes = model->weight_bytes();
  report.step_weight_bytes = model->step_weight_bytes();
  report.weights = dtype_name(model->layers()[0].gate.view().dtype());
  Bench bench(*model, cpu, machine, options);
  run_cases(o, bench, report, show);
  return report;
}

BenchReport bench_cuda(const BenchCommand& o, const Machine& machine, std::unique_ptr<Model> model,
                       const CpuContext& cpu, const BenchOptions& options, std::int64_t context,
                       const ProgressFn& show) {
  if (!o.output.trace.empty())
    fail(ErrorKind::kOption, "--trace: steps on the device are not traced; --phases times them");
  BenchReport report = report_of(o, machine, model->config(), cpu.pool->size());
  const auto bench = device_benches().make(std::move(model),
                                           {.random = !o.model.shape.empty(),
                                            .mix = bench_weight_mix(o.model),
                                            .options = options,
                                            .gpu_layers = o.machine.gpu_layers,
                                            .deepest = context,
                                            .most = *std::max_element(o.cases.batches.begin(), o.cases.batches.end())});
  report.device = bench->device();
  report.weight_bytes = bench->weight_bytes();
  report.step_weight_bytes = bench->step_weight_bytes();
  report.weights = dtype_name(bench->weights());
  run_cases(o, *bench, report, show);
  return report;
}

// Every rank measures the same cases; rank 0 tells of its own.
std::unique_ptr<RankGroup> join_bench(const BenchCommand& o, std::int64_t deepest) {
  EngineOptions asked{.device = parse_device(o.machine.device),
                      .kv_store = parse_kv_residency(o.machine.kv_store),
                      .kv_cache_dtype = parse_kv_dtype(o.machine.kv_dtype),
                      .context = deepest,
                      .max_batched_tokens = o.cases.chunk_tokens,
                      .deterministic = o.machine.deterministic};
  if (o.ranks.pipeline_parallel > 1)
    fail(ErrorKind::kUnsupported, "--pipeline-parallel-size: mneme bench times ranks that share layers alone");
  return join_ranks(o.ranks, asked);
}

int bench(BenchCommand o) {
  const bool cuda = o.machine.device == "cuda";
  if (!cuda && (o.machine.kv_store != "device" || o.machine.gpu_layers != kAutoGpuLayers ||
                !o.cases.turnovers.empty() || !o.cases.corrections.empty() || o.output.phases))
    fail(ErrorKind::kOption, "--kv-store, --gpu-layers, --turnover, --correction and --phases are for --device cuda");
  if (o.cases.depths.empty()) o.cases.depths = {2048};
  if (!o.output.svg.empty()) o.output.phases = cuda;
  if (o.methods.empty()) o.methods = {"full"};
  if (!o.decode) o.cases.warmup = 0;
  if (o.decode && cuda) o.cases.warmup = std::max(o.cases.warmup, 3);  // two steps make a graph
  const std::int64_t deepest = *std::max_element(o.cases.depths.begin(), o.cases.depths.end());
  const std::int64_t timed = o.output.phases ? o.cases.steps + kPhaseWarmup : 0;
  const std::int64_t context = deepest + (o.decode ? o.cases.warmup + o.cases.steps + timed : 0);

  check_device_options({.device = cuda ? Device::kCuda : Device::kCpu, .deterministic = o.machine.deterministic});
  const std::unique_ptr<RankGroup> ranks = join_bench(o, deepest);
  const bool tells = ranks == nullptr || ranks->leads();
  ProgressBar bar(ProgressBar::mode_for_stderr(tells && !o.output.no_progress));
  const ProgressFn show = [&bar](std::string_view what, std::int64_t done, std::int64_t total) {
    bar.show(what, done, total);
  };
  const Machine machine = read_machine();  // before this thread is pinned, which narrows what it is allowed
  const std::unique_ptr<ThreadPool> threads = make_thread_pool(
      o.machine.threads, o.machine.no_pin ? Pinning::kNone : Pinning::kPinned, parse_numa_policy(o.machine.numa));
  ThreadPool& pool = *threads;
  const CpuContext cpu{.pool = &pool, .rounding = o.machine.deterministic ? Rounding::kFixed : Rounding::kFast};
  std::unique_ptr<Model> model = load_bench_model(
      o.model, context, cpu, show, cuda ? ShapeWeights::kNone : ShapeWeights::kHere, ranks ? &ranks->world() : nullptr);
  const BenchOptions options{.kv_dtype = kv_dtype_of({.kv_cache_dtype = parse_kv_dtype(o.machine.kv_dtype)}),
                             .steps = o.cases.steps,
                             .warmup = o.cases.warmup,
                             .chunk_tokens = o.cases.chunk_tokens,
                             .keep_spans = !o.output.trace.empty(),
                             .phases = o.output.phases,
                             .host_pages = o.machine.kv_store == "host",
                             .ranks = ranks ? &ranks->world() : nullptr};
  if (ranks) ranks->world().barrier(Patience::kWhileTheyLive);
  const BenchReport report = cuda ? bench_cuda(o, machine, std::move(model), cpu, options, context, show)
                                  : bench_cpu(o, machine, std::move(model), cpu, options, show);
  bar.clear();
  if (ranks) ranks->world().barrier(Patience::kWhileTheyLive);
  if (!tells) return 0;
  if (!o.output.trace.empty()) write_trace(o, report.rows);
  if (!o.output.svg.empty()) write_text("--svg", o.output.svg, phases_svg(report));
  AnswerWriter out;
  out.write(o.output.json ? bench_json(report) : bench_table(report));
  out.end_line();
  return 0;
}

void add_case_options(CLI::App& c, BenchCommand& o) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  const auto add = [](CLI::Option* option) { option->group("Cases"); };
  add(c.add_option("--depth", o.cases.depths,
                   o.decode ? "Tokens in the KV cache before the first step (default 2048)"
                            : "Tokens of a prompt (default 2048)")
          ->type_name("TOKENS,...")
          ->delimiter(',')
          ->transform(tokens(o.decode ? 0 : 1, kMost)));
  add(c.add_option("--batch", o.cases.batches, "Sequences of one step (default 1)")
          ->type_name("N,...")
          ->delimiter(',')
          ->check(whole_number(1, 4096)));
  add(c.add_option("-n,--steps", o.cases.steps, o.decode ? "Timed steps per case" : "Timed repetitions per case")
          ->capture_default_str()
          ->check(whole_number(1, 1 << 20)));
  if (o.decode)
    add(c.add_option("--warmup", o.cases.warmup, "Untimed steps before them")
            ->capture_default_str()
            ->check(whole_number(0, 1 << 20)));
  add(c.add_option("--turnover", o.cases.turnovers,
                   o.decode
                       ? "With --device cuda: shares of the selection that a step replaces, drawn at random in place "
                         "of what random weights select"
                       : "With --device cuda, of methods whose windows select: shares that a window replaces, drawn "
                         "in place of what the random weights would select")
          ->type_name("X,...")
          ->delimiter(',')
          ->check(CLI::Range(0.0, 1.0)));
  if (o.decode)
    add(c.add_option("--correction", o.cases.corrections,
                     "With --device cuda: shares of KV heads that the gate flags, drawn at random")
            ->type_name("X,...")
            ->delimiter(',')
            ->check(CLI::Range(0.0, 1.0)));
  add(c.add_option("-b,--max-num-batched-tokens", o.cases.chunk_tokens, "Tokens of a prefill chunk")
          ->type_name("TOKENS")
          ->capture_default_str()
          ->transform(tokens(1, 1 << 20)));
}

void add_machine_options(CLI::App& c, BenchCommand& o) {
  const auto add = [](CLI::Option* option) { option->group("Memory and speed"); };
  add(c.add_option("--device", o.machine.device, "cpu, or cuda: the first NVIDIA GPU")
          ->type_name("NAME")
          ->capture_default_str()
          ->check(one_of({"cpu", "cuda"})));
  add(c.add_option("--kv-store", o.machine.kv_store, "With --device cuda, where to store the KV cache: device or host")
          ->type_name("WHERE")
          ->capture_default_str()
          ->check(one_of({"device", "host"})));
  add(c.add_option("--gpu-layers", o.machine.gpu_layers,
                   "With --device cuda, layers whose weights are on the device; the others' are in host memory "
                   "(default: all)")
          ->type_name("N")
          ->check(whole_number(0, 1 << 20)));
  add(c.add_option("--kv-cache-dtype", o.machine.kv_dtype,
                   "Type of the KV cache: bf16, f16, or in half the memory int8 or fp8")
          ->type_name("TYPE")
          ->capture_default_str()
          ->check(one_of({"bf16", "f16", "int8", "fp8"})));
  add(c.add_option("-t,--threads", o.machine.threads, "Compute threads (default: one per CPU)")
          ->check(whole_number(1, 1024)));
  add(c.add_flag("--no-pin", o.machine.no_pin, "Do not pin threads to CPUs"));
  add(c.add_option("--numa", o.machine.numa, "NUMA policy: none, distribute (over all nodes), isolate (on one)")
          ->type_name("POLICY")
          ->capture_default_str()
          ->check(one_of({"none", "distribute", "isolate"})));
  add(c.add_flag("--deterministic", o.machine.deterministic, "Batch-invariant rounding by fixed tiles"));
}

void add_one(CLI::App& app, int& code, bool decode) {
  auto options = std::make_shared<BenchCommand>();
  options->decode = decode;
  if (!decode) options->cases.steps = 1;
  CLI::App* c = app.add_subcommand(decode ? "decode" : "prefill", decode ? "Time decode steps at context depths"
                                                                         : "Time the prefill of prompts, in chunks");
  add_bench_model_options(*c, options->model);
  add_case_options(*c, *options);
  add_kv_options(*c, options->kv, options->methods);
  add_machine_options(*c, *options);
  add_rank_options(*c, options->ranks);
  c->add_flag("--json", options->output.json, "Print one JSON object")->group("Output");
  c->add_option("--trace", options->output.trace, "Write the timed steps as a Chrome trace")
      ->type_name("FILE")
      ->check(not_empty())
      ->group("Output");
  if (decode) {
    c->add_flag("--phases", options->output.phases,
                "With --device cuda, time as many steps again by phase: GEMM, selection, recall, attention, sampling")
        ->group("Output");
    c->add_option("--svg", options->output.svg, "Draw a step by phase (on the CPU by operation), a bar a case")
        ->type_name("FILE")
        ->check(not_empty())
        ->group("Output");
  }
  c->add_flag("--no-progress", options->output.no_progress,
              "No progress bar, and no line every 10 s without a terminal")
      ->group("Output");
  c->callback([options, &code] { code = bench(*options); });
}

}  // namespace

void add_bench(CLI::App& app, int& code) {
  CLI::App* c = app.add_subcommand(std::string(kBenchCompanion.command), std::string(kBenchCompanion.summary));
  c->require_subcommand(1);
  add_one(*c, code, true);
  add_one(*c, code, false);
  add_bench_serve(*c, code);
  add_bench_attention(*c, code);
  add_bench_select(*c, code);
  add_bench_gemm(*c, code);
  add_bench_gather(*c, code);
  add_bench_ablate(*c, code);
  add_bench_allreduce(*c, code);
  c->footer("Example: mneme bench decode --shape llama-3.2-1b --weights q8_0 --depth 2048,8192 --batch 1,4 -n 64");
}

}  // namespace mneme::cli
