// mneme eval --suite: published benchmarks and the user's own questions.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "apps/eval/runs/papers.h"
#include "apps/mneme/eval/eval_bench.h"

namespace mneme::cli {

struct SuiteCommand {
  std::string suite, data, grader, paper, shard = "1/1", table_file;
  std::string template_file, document_field = "context", answers_field = "answers";
  int samples = 1, at_once = 1;
  float temperature = 0, top_p = 1;
  std::int32_t max_tokens = 0, along = 0;
  std::int64_t longest_prompt = 0;
  bool forced = false;
  // What was given on the command line, where the suite has a default of its own.
  bool question_given = false, tasks_given = false, contexts_given = false;
};

void add_suite_options(CLI::App& command, SuiteCommand& o);

// Answers the suite's questions under every method and prints tables or JSON. Records go to `run_file`, if given.
//
// Errors  those of read_suite(), RunFile and SuiteRunner.
void run_suite(EvalSetup setup, const SuiteCommand& o, const std::vector<eval::MethodSpec>& specs,
               const std::string& run_file);

}  // namespace mneme::cli
