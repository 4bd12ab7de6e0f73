// LongBench v2: four choices over one text.
#include "apps/eval/scorers/words.h"
#include "apps/eval/suites/prompt.h"
#include "apps/eval/suites/rows.h"
#include "apps/eval/suites/suite.h"

namespace mneme::eval {
namespace {

// Source  THUDM/LongBench, prompts/0shot.txt (MIT).
constexpr std::string_view kPrompt =
    "Please read the following text and answer the question below.\n\n<text>\n{context}\n</text>\n\nWhat is the "
    "correct "
    "answer to this question: {question}\nChoices:\n(A) {choice_A}\n(B) {choice_B}\n(C) {choice_C}\n(D) "
    "{choice_D}\n\nFormat your response as follows: \"The correct answer is (insert answer here)\".";

SuiteItem item_of(const Row& row, std::int32_t max_tokens) {
  SuiteItem item;
  item.id = row.text_or("_id", "");
  Prompt prompt =
      fill_template(kPrompt, "context", [&](std::string_view field) { return std::string(stripped(row.text(field))); });
  item.prompt = std::move(prompt.text);
  item.question_bytes = prompt.question_bytes;
  item.groups = {row.text("difficulty"), row.text("length")};
  const std::string answer = row.text("answer");
  if (answer.size() != 1 || answer[0] < 'A' || answer[0] > 'D') row.fail_field("answer", "A, B, C or D", answer);
  item.reference.answers = {answer};
  item.scorer = "longbench_v2";
  item.max_tokens = max_tokens > 0 ? max_tokens : 128;
  return item;
}

}  // namespace

std::vector<SuiteContext> read_longbench_v2(const SuiteSetting& s) {
  check_tasks(s.tasks, {"longbench-v2"});
  std::vector<SuiteContext> contexts;
  for (const auto& file : files_of(s.data, ".json"))
    add_rows(contexts, file, "longbench-v2", s.samples,
             [n = s.max_tokens](const Row& row, auto) { return item_of(row, n); });
  return contexts;
}

}  // namespace mneme::eval
