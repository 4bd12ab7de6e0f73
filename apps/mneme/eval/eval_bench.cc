#include "apps/mneme/eval/eval_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include "apps/bench/machine.h"
#include "apps/mneme/commit.h"
#include "apps/mneme/measured/machine_json.h"
#include "apps/mneme/options.h"
#include "apps/mneme/progress_bar.h"
#include "mneme/mneme.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/base/numa.h"
#include "src/engine/kv_method.h"
#include "src/engine/kv_plan.h"
#include "src/engine/session/running_model.h"
#include "src/engine/session/session_file.h"
#include "src/formats/checkpoint.h"
#include "src/model/shapes.h"
#include "src/parallel/rank_group.h"
#include "src/recipes/override.h"

namespace mneme::cli {
namespace {

std::string task_names() {
  std::string names;
  for (const eval::TaskEntry& row : eval::task_table()) names += std::string(row.name) + ", ";
  return names + "perplexity, stream";
}

eval::TextSource prose_of(const EvalSetup& o) {
  return o.prose.empty() ? eval::TextSource::generated() : eval::TextSource::read({o.prose.begin(), o.prose.end()});
}

std::unique_ptr<Engine> engine_of(const EvalSetup& o, std::unique_ptr<Checkpoint> checkpoint) {
  EngineOptions options = o.engine;
  if (options.threads == 0) options.threads = available_cpus();
  const std::int64_t longest = *std::max_element(o.lengths.begin(), o.lengths.end());
  if (options.context == 0)
    options.context = o.context_of_model ? checkpoint->config().max_context
                                         : std::min(checkpoint->config().max_context, longest + 2048);
  const KvShape kv_shape = kv_shape_of(checkpoint->config(), kv_dtype_of(options));
  // The contexts, and for each question that runs beside them pages of its own.
  options.kv_memory_bytes = kv_shape.bytes_per_token() * (std::int64_t{options.context} * o.contexts_at_once +
                                                          std::int64_t{options.max_sequences} * 1024);
  if (RankGroup::current() != nullptr)
    return std::move(start_model(std::move(checkpoint), nullptr, options, {}).engine);
  auto threads =
      make_thread_pool(options.threads, options.pin_threads ? Pinning::kPinned : Pinning::kNone, options.numa);
  const CpuContext context{.pool = threads.get(),
                           .rounding = options.deterministic ? Rounding::kFixed : Rounding::kFast};
  std::unique_ptr<Model> model = Model::load(std::move(checkpoint), {.context = options.context}, context);
  return std::make_unique<Engine>(std::move(model), options, std::move(threads));
}

}  // namespace

void add_eval_options(CLI::App& c, EvalSetup& o) {
  c.add_option("-m,--model", o.model.path, "GGUF file or Hugging Face folder")->type_name("PATH");
  add_hf_option(c, o.model);
  c.add_option("--tasks", o.tasks, "Of: " + task_names())->delimiter(',')->type_name("NAME,...")->capture_default_str();
  c.add_option("--lengths", o.lengths, "Tokens of the context")
      ->delimiter(',')
      ->transform(tokens(256, 1 << 30))
      ->type_name("TOKENS,...")
      ->capture_default_str();
  c.add_option("--contexts", o.contexts, "Contexts per task and length; each has several questions")
      ->check(whole_number(1, 100000))
      ->capture_default_str();
  c.add_option("--question", o.question,
               "Read the question by decode steps, as the method attends, or by prefill, exactly")
      ->check(one_of({"decode", "prefill"}))
      ->capture_default_str();
  c.add_flag("--question-span", o.question_span,
             "Put the question before the context too, marked as the prompt's question");
  c.add_option("-c,--max-model-len,--ctx-size", o.engine.context,
               "Context length: context and answer (default: what the lengths need, at most the model's)")
      ->type_name("TOKENS")
      ->transform(tokens(1, std::numeric_limits<std::int32_t>::max()));
  c.add_option("--prose", o.prose, "Text files that contexts are cut from (default: generated prose)")
      ->type_name("FILE");
  c.add_option("--seed", o.seed, "Seed of contexts and questions")->capture_default_str();
  c.add_option("--svg", o.svg_file, "Write a plot")->type_name("FILE");
  c.add_flag("--json", o.json, "Print one JSON object instead of tables");
  c.add_flag("--no-progress", o.no_progress, "No progress bar");
  c.add_option("--threads", o.engine.threads, "Compute threads; 0: one per CPU")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
  c.add_flag("--deterministic", o.engine.deterministic, "Batch-invariant rounding: the same tokens in every batch");
  add_named(c, "--device", o.engine.device, parse_device, "cpu or cuda")->check(one_of({"cpu", "cuda"}));
  add_named(c, "--kv-store", o.engine.kv_store, parse_kv_residency,
            "With --device cuda, where to store the KV cache: auto, device or host")
      ->check(one_of({"auto", "device", "host"}));
  add_named(c, "--kv-cache-dtype", o.engine.kv_cache_dtype, parse_kv_dtype, "bf16, f16, int8 or fp8")
      ->check(one_of({"bf16", "f16", "int8", "fp8"}));
}

nlohmann::json file_settings(const std::filesystem::path& path) {
  const MappedFile file(path);
  return {{"file", path.filename().string()},
          {"bytes", file.bytes().size()},
          {"xxh3", fmt::format("{:016x}", session_checksum(file.bytes()))}};
}

void check_eval_options(const EvalSetup& o) {
  expect_model(o.model);
  for (const std::string& task : o.tasks)
    eval::Runner::check_task(task, o.question_span ? eval::QuestionMark::kBefore : eval::QuestionMark::kNone);
}

nlohmann::json eval_settings(const EvalSetup& o) {
  nlohmann::json prose = nlohmann::json::array();
  for (const std::string& file : o.prose) prose.push_back(file_settings(file));
  const std::filesystem::path path(o.model.path);
  return {{"model", o.model.repo.empty() ? path.filename().string() : o.model.repo},
          {"seed", o.seed},
          {"question", o.question},
          {"question_span", o.question_span},
          {"prose", o.prose.empty() ? nlohmann::json("generated") : prose},
          {"kv_cache_dtype", name_of(o.engine.kv_cache_dtype)},
          {"deterministic", o.engine.deterministic}};
}

nlohmann::json eval_origin() {
  const Machine machine = read_machine();
  return {{"version", version()},
          {"commit", build_commit()},
          {"command", command_line()},
          {"machine", {{"cpu", machine.cpu}, {"cpus", machine.cpus_allowed}}}};
}

EvalBench::EvalBench(const EvalSetup& o) : prose_(prose_of(o)) {
  auto checkpoint = Checkpoint::open(model_file(o.model, !o.no_progress));
  tokenizer_ = Tokenizer::make(checkpoint->tokenizer());
  engine_ = engine_of(o, std::move(checkpoint));
  const auto question = o.question == "decode" ? eval::QuestionPath::kDecode : eval::QuestionPath::kPrefill;
  const auto mark = o.question_span ? eval::QuestionMark::kBefore : eval::QuestionMark::kNone;
  runner_ = std::make_unique<eval::Runner>(*engine_, *tokenizer_,
                                           eval::EvalOptions{.seed = o.seed, .question = question, .mark = mark});
}

void EvalBench::run(const EvalSetup& o, const std::vector<eval::MethodSpec>& methods, std::int64_t first_sample,
                    std::string_view what, const Done& done) {
  ProgressBar bar(ProgressBar::mode_for_stderr(!o.no_progress));
  const auto total = std::ssize(o.tasks) * std::ssize(o.lengths) * std::ssize(methods) * o.contexts;
  std::int64_t n = 0;
  bar.show(what, n, total);
  for (std::int64_t sample = first_sample; sample < first_sample + o.contexts; ++sample)
    for (std::int64_t length : o.lengths)
      for (const std::string& task : o.tasks)
        runner_->run(task, length, sample, prose_, methods, [&](const eval::CellRecord& r) {
          done(r);
          bar.show(what, ++n, total);
        });
}

eval::MethodSpec method_spec(const std::string& text, KvOptions kv) {
  std::string note;
  Recipe recipe = recipe_named(text, std::move(kv), &note);
  say_note(note);
  if (recipe.attend == Attend::kEverything || recipe.norm) return {text, recipe};  // the prompt sets the budget
  return {fmt::format("{} b{}", text, recipe.budget), recipe};
}

}  // namespace mneme::cli
