// mneme eval: what answers lose, and what they save, when they attend a part of the context.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "mneme/mneme.h"
#include "src/base/error.h"
#include "src/base/numa.h"
#include "src/checkpoint/checkpoint.h"
#include "src/cli/commands.h"
#include "src/cli/kv_options.h"
#include "src/cli/options.h"
#include "src/cli/progress_bar.h"
#include "src/engine/kv_method.h"
#include "src/eval/report.h"
#include "src/eval/runner.h"
#include "src/recipes/override.h"

namespace mneme::cli {
namespace {

struct EvalCommand {
  std::string model;
  std::vector<std::string> tasks = {"number", "password", "where"};
  std::vector<std::string> methods = {"full", "window", "oracle", "quest", "freekv", "fier"};
  std::vector<std::int64_t> lengths = {4096};
  std::vector<std::int32_t> budgets = {512};
  KvOptions kv;
  int contexts = 4;
  std::uint64_t seed = 1;
  std::string question = "decode";
  std::vector<std::string> prose;
  std::string run_file, svg_file;
  bool json = false, no_progress = false;
  EngineOptions engine{.max_sequences = 32};
};

// "freekv:tau=0.9/pool=maxS" under every budget; `full` once.
std::vector<eval::MethodSpec> specs_of(const EvalCommand& c) {
  std::vector<eval::MethodSpec> specs;
  for (const std::string& text : c.methods) {
    const std::size_t colon = text.find(':');
    KvOptions kv = c.kv;
    kv.method = text.substr(0, colon);
    std::string overrides = colon == std::string::npos ? std::string() : text.substr(colon + 1);
    for (char& letter : overrides)
      if (letter == '/') letter = ',';
    for (std::int32_t budget : c.budgets) {
      kv.budget = budget;
      Recipe recipe = recipe_of(kv);
      apply_overrides(overrides, recipe);
      if (recipe.attend == Attend::kEverything) {
        specs.push_back({text, recipe});
        break;
      }
      specs.push_back({fmt::format("{} b{}", text, recipe.budget), recipe});
    }
  }
  return specs;
}

// Everything that was set, for the JSON and the run's file: a run goes on only with the same settings.
nlohmann::json settings_of(const EvalCommand& c, const std::vector<eval::MethodSpec>& specs) {
  nlohmann::json methods = nlohmann::json::array();
  for (const eval::MethodSpec& s : specs) {
    nlohmann::json m = {{"label", s.label}, {"method", s.recipe.name}};
    for (const OverrideKey& key : override_keys()) {
      const std::string value = override_value(s.recipe, key.key);
      if (!value.empty()) m[std::string(key.key)] = value;
    }
    methods.push_back(m);
  }
  return {{"model", c.model},
          {"seed", c.seed},
          {"question", c.question},
          {"prose", c.prose},
          {"audit", c.engine.audit_every},
          {"kv_cache_dtype", c.engine.kv_cache_dtype},
          {"deterministic", c.engine.deterministic},
          {"methods", methods}};
}

using Done = std::set<std::tuple<std::string, std::int64_t, std::int64_t, std::string>>;

// Records of an earlier, interrupted run with the same settings.
std::vector<eval::CellRecord> earlier_records(const EvalCommand& c, const nlohmann::json& settings) {
  std::vector<eval::CellRecord> records;
  std::ifstream in(c.run_file);
  std::string line;
  bool first = true;
  while (std::getline(in, line)) {
    const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_discarded()) break;  // the line that an interruption cut off
    if (first && j.value("settings", nlohmann::json()) != settings)
      fail(ErrorKind::kOption, "--run {}: was made with other settings; give another file, or remove it", c.run_file);
    if (!first) records.push_back(eval::record_from_json(j));
    first = false;
  }
  return records;
}

void write_run(const EvalCommand& c, const nlohmann::json& settings, const std::vector<eval::CellRecord>& records) {
  std::ofstream out(c.run_file, std::ios::trunc);
  out << nlohmann::json{{"settings", settings}}.dump() << "\n";
  for (const eval::CellRecord& r : records) out << eval::to_json(r).dump() << "\n";
  if (!out.flush()) fail(ErrorKind::kFile, "--run {}: cannot be written", c.run_file);
}

int run_eval(const EvalCommand& c) {
  for (const std::string& task : c.tasks) eval::Runner::check_task(task);
  const std::vector<eval::MethodSpec> specs = specs_of(c);
  if (c.prose.empty()) fail(ErrorKind::kOption, "--prose: expected at least one text file to cut contexts from");
  const eval::TextSource prose = eval::TextSource::read({c.prose.begin(), c.prose.end()});
  const nlohmann::json settings = settings_of(c, specs);

  auto checkpoint = Checkpoint::open(c.model);
  const auto tokenizer = Tokenizer::make(checkpoint->tokenizer());
  EngineOptions engine_options = c.engine;
  if (engine_options.threads == 0) engine_options.threads = available_cpus();
  std::int64_t longest = 0;
  for (std::int64_t length : c.lengths) longest = std::max(longest, length);
  if (engine_options.context == 0) engine_options.context = std::min(checkpoint->config().max_context, longest + 2048);
  auto threads =
      make_thread_pool(engine_options.threads, engine_options.pin_threads ? Pinning::kPinned : Pinning::kNone,
                       numa_policy(engine_options.numa));
  const CpuContext context{.pool = threads.get(),
                           .rounding = c.engine.deterministic ? Rounding::kFixed : Rounding::kFast};
  const KvShape kv_shape{static_cast<std::int32_t>(checkpoint->config().n_layers),
                         static_cast<std::int32_t>(checkpoint->config().n_kv_heads),
                         static_cast<std::int32_t>(checkpoint->config().head_dim), DType::kBF16};
  // One context, and for each question that runs beside it pages of its own.
  engine_options.kv_memory_bytes = static_cast<std::int64_t>(kv_shape.bytes_per_token()) *
                                   (engine_options.context + std::int64_t{engine_options.max_sequences} * 1024);
  std::unique_ptr<Model> model = Model::load(std::move(checkpoint), {.context = engine_options.context}, context);
  Engine engine(std::move(model), engine_options, std::move(threads));
  for (const eval::MethodSpec& s : specs)
    compile(s.recipe, engine.method_shape());  // refuse what cannot be before anything runs

  std::vector<eval::CellRecord> records;
  if (!c.run_file.empty()) records = earlier_records(c, settings);
  Done done;
  for (const eval::CellRecord& r : records) done.insert({r.task, r.length, r.sample, r.method});
  if (!c.run_file.empty()) write_run(c, settings, records);
  eval::Runner runner(
      engine, *tokenizer,
      {.seed = c.seed,
       .question = c.question == "decode" ? eval::QuestionPath::kDecode : eval::QuestionPath::kPrefill});
  ProgressBar bar(ProgressBar::mode_for_stderr(!c.no_progress));
  const auto total = static_cast<std::int64_t>(c.tasks.size() * c.lengths.size() * specs.size()) * c.contexts;
  for (int sample = 0; sample < c.contexts; ++sample)
    for (std::int64_t length : c.lengths)
      for (const std::string& task : c.tasks) {
        std::vector<eval::MethodSpec> left;
        for (const eval::MethodSpec& s : specs)
          if (!done.contains({task, length, sample, s.label})) left.push_back(s);
        if (left.empty()) continue;
        runner.run(task, length, sample, prose, left, [&](const eval::CellRecord& r) {
          records.push_back(r);
          if (!c.run_file.empty()) {
            std::ofstream out(c.run_file, std::ios::app);
            out << eval::to_json(r).dump() << "\n";
            if (!out.flush()) fail(ErrorKind::kFile, "--run {}: cannot be written", c.run_file);
          }
          bar.show("eval, method and context", static_cast<std::int64_t>(records.size()), total);
        });
      }
  bar.clear();

  const auto cells = eval::summarise(records);
  if (c.json) {
    nlohmann::json out = {{"settings", settings}, {"cells", nlohmann::json::array()}};
    for (const auto& cell : cells) out["cells"].push_back(eval::to_json(cell));
    fmt::print("{}\n", out.dump(1));
  } else {
    fmt::print("{}", eval::table(cells));
  }
  if (!c.svg_file.empty()) {
    std::ofstream out(c.svg_file);
    out << eval::plot_svg(cells);
    if (!out.flush()) fail(ErrorKind::kFile, "--svg {}: cannot be written", c.svg_file);
  }
  return 0;
}

std::string task_names() {
  std::string names;
  for (const eval::TaskRow& row : eval::task_table()) names += std::string(row.name) + ", ";
  return names + "perplexity, stream";
}

}  // namespace

void add_eval(CLI::App& app, int& code) {
  CLI::App* command =
      app.add_subcommand("eval", "Measures what KV methods lose in right answers and save in bytes and time");
  const auto o = std::make_shared<EvalCommand>();
  command->add_option("-m,--model", o->model, "Model: a .gguf file or a Hugging Face folder")
      ->required()
      ->type_name("PATH");
  command->add_option("--tasks", o->tasks, "Of: " + task_names())
      ->delimiter(',')
      ->type_name("NAME,...")
      ->capture_default_str();
  command
      ->add_option("--methods", o->methods,
                   "KV methods, with overrides as freekv:tau=0.9/pool=maxS (see mneme methods)")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->capture_default_str();
  command->add_option("--lengths", o->lengths, "Tokens of context")
      ->delimiter(',')
      ->check(whole_number(256, 1 << 30))
      ->type_name("TOKENS,...")
      ->capture_default_str();
  command->add_option("--budgets", o->budgets, "Tokens that a step attends, all included")
      ->delimiter(',')
      ->check(whole_number(1, 1 << 30))
      ->type_name("TOKENS,...")
      ->capture_default_str();
  command->add_option("--contexts", o->contexts, "Contexts for each task and length; each has several questions")
      ->check(whole_number(1, 100000))
      ->capture_default_str();
  command
      ->add_option("--question", o->question,
                   "How the question is fed: decode (one token a step, as the method attends) or prefill (exactly)")
      ->check(one_of({"decode", "prefill"}))
      ->capture_default_str();
  command->add_option("--prose", o->prose, "Plain text to cut contexts from; several files may be given")
      ->required()
      ->type_name("FILE");
  command->add_option("--seed", o->seed, "Of contexts and questions")->capture_default_str();
  command->add_option("--audit", o->engine.audit_every, "Every n-th step also computes the true attention; 0: never")
      ->check(whole_number(0, 1000000))
      ->capture_default_str();
  command
      ->add_option("--run", o->run_file, "Records go here as they are made; a run that was interrupted goes on from it")
      ->type_name("FILE");
  command->add_option("--svg", o->svg_file, "A plot of accuracy against bytes")->type_name("FILE");
  command->add_flag("--json", o->json, "One JSON object instead of a table");
  command->add_flag("--no-progress", o->no_progress, "No progress bar");
  command->add_option("--threads", o->engine.threads, "0: one per CPU")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
  command->add_flag("--deterministic", o->engine.deterministic, "The same tokens whatever else is in the batch");
  command->add_option("--kv-cache-dtype", o->engine.kv_cache_dtype, "bf16 or f16")
      ->check(one_of({"bf16", "f16"}))
      ->capture_default_str();
  add_kv_block_options(*command, o->kv);
  command->callback([o, &code] { code = run_eval(*o); });
}

}  // namespace mneme::cli
