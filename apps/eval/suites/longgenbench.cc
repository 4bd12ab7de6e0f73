// LongGenBench of Wu et al. ("Spinning the Golden Thread"): plans of hundreds of entries.
//
// The published accuracy asks a judge whether an entry includes an event. Here the words of the event replace the
// judge; the completion rate needs none.
#include "apps/eval/suites/rows.h"
#include "apps/eval/suites/suite.h"

namespace mneme::eval {
namespace {

constexpr std::string_view kCompletion = "completion", kEvents = "events";

std::vector<std::string> events_of(const Row& row) {
  std::vector<std::string> events;
  for (const char* field : {"checks_once", "checks_range", "checks_periodic"}) {
    if (!row.has(field)) continue;
    const auto& checks = row.value().at(field);
    if (!checks.is_object()) row.fail_field(field, "an object of entry and event", checks.type_name());
    for (const auto& [entry, event] : checks.items())
      events.push_back(event.is_string() ? event.get<std::string>() : event.dump());
  }
  if (events.empty()) row.fail_field("checks_once", "an event", "none");
  return events;
}

SuiteItem item_of(const Row& row, std::string_view task, std::int32_t max_tokens) {
  SuiteItem item;
  item.prompt = row.text("prompt");
  item.question_bytes = 0;
  item.answer_prefix = row.text_or("prefix", "");
  item.groups = {row.text("type")};
  item.stop = "*** finished";
  const std::int64_t entries = row.integer("number");
  item.max_tokens = max_tokens > 0 ? max_tokens : entries > 200 ? 32000 : 16000;
  item.scorer = task == kCompletion ? "completion" : "event_words";
  item.reference.answers =
      task == kCompletion ? std::vector{row.text("type") + " " + std::to_string(entries)} : events_of(row);
  return item;
}

}  // namespace

std::vector<SuiteContext> read_longgenbench(const SuiteSetting& s) {
  check_tasks(s.tasks, {kCompletion, kEvents});
  std::vector<SuiteContext> contexts;
  for (const auto& file : files_of(s.data, ".json"))
    for (std::string_view task : {kCompletion, kEvents})
      if (is_wanted(s.tasks.empty() ? std::vector<std::string>{std::string(kCompletion)} : s.tasks, task))
        add_rows(contexts, file, std::string(task), s.samples,
                 [n = s.max_tokens](const Row& row, std::string_view t) { return item_of(row, t, n); });
  return contexts;
}

}  // namespace mneme::eval
