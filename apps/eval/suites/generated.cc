// Suites that the program makes: facts, needle in a haystack, passkey, long answers.
#include "apps/eval/generated/generated.h"

#include <fmt/format.h>

#include <iterator>
#include <memory>

#include "apps/eval/generated/long_answer.h"
#include "apps/eval/generated/needle.h"
#include "apps/eval/generated/task.h"
#include "apps/eval/suites/rows.h"
#include "apps/eval/suites/suite.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

constexpr int kDepths = 10;

SuiteItem needle_item(GeneratedQuestion q, std::string_view scorer, std::int32_t max_tokens) {
  SuiteItem item;
  item.prompt = std::move(q.prompt);
  item.question_bytes = q.question_bytes;
  item.reference.answers = std::move(q.answers);
  item.scorer = scorer;
  item.max_tokens = max_tokens;
  item.depth = q.depth;
  item.id = fmt::format("{:.0f} %", 100 * q.depth);
  item.groups = {fmt::format("depth {:.0f} %", 100 * q.depth)};
  return item;
}

// Contexts at 10 even depths, `samples` times.
std::vector<SuiteContext> at_depths(
    const SuiteSetting& s, std::string_view task,
    const std::function<SuiteItem(std::int64_t length, double depth, int number)>& make) {
  std::vector<SuiteContext> contexts;
  for (std::int64_t length : s.lengths)
    for (int i = 0; i < std::max(s.samples, 1) * kDepths; ++i)
      contexts.push_back({std::string(task), length, std::to_string(i), [make, length, i] {
                            const double depth = ratio(i % kDepths, kDepths - 1);
                            return std::vector<SuiteItem>{make(length, depth, i)};
                          }});
  return contexts;
}

// Text in the file's own wording, document and question apart.
SuiteItem document_item(const std::string& document, const std::string& question) {
  SuiteItem item;
  item.prompt = document + question;
  item.question_bytes = question.size();
  item.framing = Framing::kDocument;
  return item;
}

std::vector<SuiteItem> facts_items(const TaskEntry& task, const SuiteSetting& s, std::int64_t length, int number) {
  const Sample sample = make_sample(task, *s.prose, length, s.seed, number, *s.counter);
  std::vector<SuiteItem> items;
  for (const Question& q : sample.questions) {
    SuiteItem item = document_item(sample.context, q.text);
    item.id = fmt::format("{}.{}", number, items.size());
    item.reference.answers = {q.answer};
    item.scorer = "exact";
    item.max_tokens = s.max_tokens > 0 ? s.max_tokens : count32(s.counter->count(q.answer)) + 12;
    item.depth = q.depth;
    items.push_back(std::move(item));
  }
  return items;
}

SuiteItem long_item(LongQuestion q, int number, const TokenCounter& counter) {
  SuiteItem item = document_item(q.document, q.question);
  item.id = std::to_string(number);
  std::int64_t longest = counter.count(q.answer);
  for (LongTurn& turn : q.turns) {
    longest = std::max(longest, counter.count(turn.answer));
    item.turns.push_back({std::move(turn.question), std::move(turn.answer)});
  }
  item.max_tokens = count32(longest) + 32;
  item.reference.answers = {std::move(q.answer)};
  item.scorer = item.turns.empty() ? "lines" : "exact";
  return item;
}

}  // namespace

std::vector<SuiteContext> read_niah(const SuiteSetting& s) {
  static constexpr int kLookAlikes = 6;
  check_tasks(s.tasks, {"niah", "look_alikes"});
  std::shared_ptr<const TextSource> essays;
  if (!s.data.empty()) essays = std::make_shared<const TextSource>(TextSource::read(files_of(s.data, ".txt")));
  std::vector<SuiteContext> contexts;
  for (const std::string& task : s.tasks.empty() ? std::vector<std::string>{"niah"} : s.tasks) {
    const int others = task == "niah" ? 0 : kLookAlikes;
    auto all = at_depths(s, task, [s, essays, others](std::int64_t length, double depth, int number) {
      const std::int32_t answer = s.max_tokens > 0 ? s.max_tokens : 32;
      const TextSource& prose = essays ? *essays : *s.prose;
      const std::int64_t room = length - answer - s.frame_tokens;
      return needle_item(make_needle(prose, *s.counter, room, depth, s.seed, number, others), "contains_any", answer);
    });
    contexts.insert(contexts.end(), std::make_move_iterator(all.begin()), std::make_move_iterator(all.end()));
  }
  return contexts;
}

std::vector<SuiteContext> read_passkey(const SuiteSetting& s) {
  check_tasks(s.tasks, {"passkey"});
  return at_depths(s, "passkey", [s](std::int64_t length, double depth, int number) {
    const std::int32_t answer = s.max_tokens > 0 ? s.max_tokens : 10;
    SuiteItem item = needle_item(make_passkey(*s.counter, length - answer - s.frame_tokens, depth, s.seed, number),
                                 "first_digits", answer);
    item.framing = Framing::kPlain;
    return item;
  });
}

std::vector<SuiteContext> read_facts(const SuiteSetting& s) {
  std::vector<std::string_view> known;
  for (const TaskEntry& task : task_table())
    if (task.name != "turns") known.push_back(task.name);
  check_tasks(s.tasks, known);
  const auto wanted = s.tasks.empty() ? std::vector<std::string>{"number", "where", "register", "chain"} : s.tasks;
  std::vector<SuiteContext> contexts;
  for (std::int64_t length : s.lengths)
    for (const std::string& name : wanted)
      for (int i = 0; i < (s.samples > 0 ? s.samples : 4); ++i)
        contexts.push_back({name, length, std::to_string(i),
                            [task = &find_task(name), s, length, i] { return facts_items(*task, s, length, i); }});
  return contexts;
}

std::vector<SuiteContext> read_long(const SuiteSetting& s) {
  std::vector<std::string_view> known;
  for (const LongTask& task : long_tasks()) known.push_back(task.name);
  check_tasks(s.tasks, known);
  const std::int32_t answer_tokens = s.max_tokens > 0 ? s.max_tokens : 4096;
  std::vector<SuiteContext> contexts;
  for (std::int64_t length : s.lengths)
    for (const LongTask& task : long_tasks())
      for (int i = 0; i < (s.samples > 0 ? s.samples : 1) && is_wanted(s.tasks, task.name); ++i)
        contexts.push_back({std::string(task.name), length, std::to_string(i), [&task, s, length, i, answer_tokens] {
                              LongQuestion q = make_long(task, *s.prose, *s.counter, length, answer_tokens, s.seed, i);
                              return std::vector<SuiteItem>{long_item(std::move(q), i, *s.counter)};
                            }});
  return contexts;
}

}  // namespace mneme::eval
