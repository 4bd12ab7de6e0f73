// LongBench and LongBench-E.
//
// The words of the Chinese tasks are characters here, jieba's dictionary being no part of the project: their figures are
// not the published ones.
#include <algorithm>

#include "apps/eval/suites/longbench_prompts.h"
#include "apps/eval/suites/prompt.h"
#include "apps/eval/suites/rows.h"
#include "apps/eval/suites/suite.h"

namespace mneme::eval {
namespace {

SuiteItem item_of(const LongBenchTask& task, const Row& row, bool extended, std::int32_t max_tokens) {
  SuiteItem item;
  item.id = row.text_or("_id", "");
  Prompt prompt = fill_template(task.prompt, "context", [&](std::string_view field) { return row.text(field); });
  item.prompt = std::move(prompt.text);
  item.question_bytes = prompt.question_bytes;
  item.framing = task.few_shot ? Framing::kPlain : Framing::kTurn;
  item.reference = {row.texts("answers"), row.texts_or_none("all_classes")};
  if (task.scorer == "classification" && item.reference.classes.empty())
    row.fail_field("all_classes", "an array of strings", "none");
  item.scorer = task.scorer;
  item.max_tokens = max_tokens > 0 ? max_tokens : task.answer_tokens;
  item.first_line_only = task.few_shot && !task.code;
  if (task.name == "samsum") item.stop = "\n";
  if (extended) {
    const std::int64_t length = row.integer("length");
    item.groups.push_back(length < 4000 ? "0-4k" : length < 8000 ? "4-8k" : "8k+");
  }
  return item;
}

}  // namespace

std::vector<SuiteContext> read_longbench(const SuiteSetting& s) {
  std::vector<std::string_view> known;
  for (const LongBenchTask& task : longbench_tasks()) known.push_back(task.name);
  check_tasks(s.tasks, known);
  const auto files = files_of(s.data, ".jsonl");
  std::vector<SuiteContext> contexts;
  for (const LongBenchTask& task : longbench_tasks())
    for (const auto& file : files) {
      const std::string stem = file.stem().string();
      const bool extended = stem == std::string(task.name) + "_e";
      if ((stem != task.name && !extended) || !is_wanted(s.tasks, task.name)) continue;
      add_rows(contexts, file, std::string(task.name), s.samples,
               [&task, extended, n = s.max_tokens](const Row& row, auto) { return item_of(task, row, extended, n); });
    }
  return contexts;
}

}  // namespace mneme::eval
