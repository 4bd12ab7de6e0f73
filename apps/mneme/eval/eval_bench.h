// Shared by the subcommands of `mneme eval`: the model, contexts with questions, and options.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/eval/runner.h"
#include "apps/mneme/answer_writer.h"
#include "apps/mneme/kv_options.h"
#include "apps/mneme/model_source.h"
#include "src/engine/engine.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme::cli {

struct EvalSetup {
  ModelSource model;
  std::vector<std::string> tasks;
  std::vector<std::int64_t> lengths = {4096};
  int contexts = 4;
  std::uint64_t seed = 1;
  std::string question = "decode";
  bool question_span = false;
  std::vector<std::string> prose;
  std::string svg_file;
  bool json = false, no_progress = false;
  int contexts_at_once = 1;       // that the engine has memory for
  bool context_of_model = false;  // the longest context is the model's, not what the lengths need
  EngineOptions engine{.max_sequences = 32};
};

// Options that every subcommand has; `o` holds the defaults.
void add_eval_options(CLI::App& command, EvalSetup& o);

// Settings that determine the questions, for JSON and for a run's file. Files by name, size and checksum, so that a
// result identifies its inputs on any machine.
nlohmann::json eval_settings(const EvalSetup& o);
// The program, the command line and the machine.
nlohmann::json eval_origin();

// A file by name, size and checksum.
nlohmann::json file_settings(const std::filesystem::path& path);

// Options that CLI11 cannot check: unknown tasks, no model.   Errors  kOption.
void check_eval_options(const EvalSetup& o);

class EvalBench {
 public:
  // Errors  kFile, kFormat, kOption, kResource.
  explicit EvalBench(const EvalSetup& o);

  Engine& engine() { return *engine_; }
  eval::Runner& runner() { return *runner_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const eval::TextSource& prose() const { return prose_; }
  // Runs `methods` on every context of every task and length, sample by sample. Calls `done` after each method with the
  // number of finished (sample, method) pairs and the total.
  using Done = std::function<void(const eval::CellRecord&)>;
  void run(const EvalSetup& o, const std::vector<eval::MethodSpec>& methods, std::int64_t first_sample,
           std::string_view what, const Done& done);

 private:
  eval::TextSource prose_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<eval::Runner> runner_;
};

// Parses "freekv:tau=0.9/pool=maxS", with `kv` for all methods, into a recipe labelled by the text and the budget.
//
// Errors  kOption.
eval::MethodSpec method_spec(const std::string& text, KvOptions kv);

}  // namespace mneme::cli
