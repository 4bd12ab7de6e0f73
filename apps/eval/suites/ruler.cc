// RULER: made here, of what the published generator reads where that is given, or read from files that it made.
#include "apps/eval/generated/ruler.h"

#include <fmt/format.h>

#include "apps/eval/suites/rows.h"
#include "apps/eval/suites/ruler_sources.h"
#include "apps/eval/suites/suite.h"

namespace mneme::eval {
namespace {

// The question of a published sample: its last line.
std::size_t last_line_bytes(const std::string& prompt) {
  const std::size_t end = prompt.rfind('\n');
  return end == std::string::npos ? prompt.size() : prompt.size() - end;
}

SuiteItem file_item(const RulerTask& task, const Row& row, std::int32_t max_tokens) {
  SuiteItem item;
  item.id = row.text_or("index", "");
  item.prompt = row.text("input");
  item.answer_prefix = row.text_or("answer_prefix", "");
  if (!item.answer_prefix.empty() && item.prompt.ends_with(item.answer_prefix))
    item.prompt.resize(item.prompt.size() - item.answer_prefix.size());
  item.question_bytes = last_line_bytes(item.prompt);
  item.reference.answers = row.texts("outputs");
  item.scorer = task.scorer;
  item.max_tokens = max_tokens > 0 ? max_tokens : task.answer_tokens;
  return item;
}

SuiteItem generated_item(const RulerTask& task, const SuiteSetting& s, const RulerSources* sources, std::int64_t length,
                         int number) {
  const RulerSetting setting{
      .prose = *s.prose, .counter = *s.counter, .length = length, .task = task.name, .sources = sources};
  GeneratedQuestion q = make_ruler(task, setting, s.frame_tokens, s.seed, number);
  SuiteItem item;
  item.id = std::to_string(number);
  item.prompt = std::move(q.prompt);
  item.question_bytes = q.question_bytes;
  item.answer_prefix = std::move(q.answer_prefix);
  item.reference.answers = std::move(q.answers);
  item.scorer = task.scorer;
  item.max_tokens = s.max_tokens > 0 ? s.max_tokens : task.answer_tokens;
  item.depth = q.depth;
  return item;
}

}  // namespace

std::vector<SuiteContext> read_ruler(const SuiteSetting& s) {
  std::vector<std::string_view> known;
  for (const RulerTask& task : ruler_tasks()) known.push_back(task.name);
  check_tasks(s.tasks, known);
  std::vector<SuiteContext> contexts;
  const auto sources = read_ruler_sources(s.data);
  if (!s.data.empty() && sources == nullptr) {
    const auto files = files_of(s.data, ".jsonl");
    for (const RulerTask& task : ruler_tasks())
      for (const auto& file : files)
        if ((file.stem() == task.name || file.parent_path().filename() == task.name) && is_wanted(s.tasks, task.name))
          add_rows(contexts, file, std::string(task.name), s.samples,
                   [&task, n = s.max_tokens](const Row& row, auto) { return file_item(task, row, n); });
    return contexts;
  }
  for (std::int64_t length : s.lengths)
    for (const RulerTask& task : ruler_tasks())
      for (int i = 0; i < (s.samples > 0 ? s.samples : 10) && is_wanted(s.tasks, task.name); ++i)
        contexts.push_back({std::string(task.name), length, std::to_string(i), [&task, s, sources, length, i] {
                              return std::vector<SuiteItem>{generated_item(task, s, sources.get(), length, i)};
                            }});
  return contexts;
}

}  // namespace mneme::eval
