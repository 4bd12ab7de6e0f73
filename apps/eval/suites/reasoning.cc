// Problems that are reasoned out: MATH-500, AIME, GSM8K; GPQA.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include "apps/eval/scorers/words.h"
#include "apps/eval/suites/csv.h"
#include "apps/eval/suites/rows.h"
#include "apps/eval/suites/suite.h"
#include "src/base/ascii.h"
#include "src/base/rng.h"

namespace mneme::eval {
namespace {

constexpr std::int32_t kReasoningTokens = 16384;

SuiteItem math_item(const Row& row, std::int32_t max_tokens) {
  SuiteItem item;
  item.id = row.text_or("unique_id", row.text_or("id", ""));
  const std::string problem = row.text_of_any({"problem", "question", "Problem"});
  item.prompt = problem + " Please reason step by step, and put your final answer within \\boxed{}.\n";
  item.question_bytes = 0;
  std::string answer = row.text_of_any({"answer", "Answer"});
  // GSM8K's answer is its working, then "#### 18".
  if (const std::size_t mark = answer.rfind("####"); mark != std::string::npos)
    answer = replaced_all(std::string(stripped(answer.substr(mark + 4))), ",", "");
  item.reference.answers = {answer};
  item.scorer = "boxed";
  if (row.has("level")) item.groups.push_back("level " + row.text("level"));
  item.max_tokens = max_tokens > 0 ? max_tokens : kReasoningTokens;
  return item;
}

// The order of the choices is drawn from the seed and the row, the same for every method.
SuiteItem gpqa_item(const Row& row, std::size_t number, std::uint64_t seed, std::int32_t max_tokens) {
  const std::array<std::string, 4> choices = {row.text("Correct Answer"), row.text("Incorrect Answer 1"),
                                              row.text("Incorrect Answer 2"), row.text("Incorrect Answer 3")};
  std::array<std::size_t, 4> order = {0, 1, 2, 3};
  Rng rng = Rng::of_item(seed, number);
  for (std::size_t i = 3; i > 0; --i) std::swap(order[i], order[rng.below(i + 1)]);
  SuiteItem item;
  item.id = row.text_or("Record ID", std::to_string(number));
  item.prompt = fmt::format(
      "Answer the following multiple choice question. The last line of your response should be of the following "
      "format: "
      "'Answer: $LETTER' (without quotes) where LETTER is one of ABCD. Think step by step before "
      "answering.\n\n{}\n\nA) {}\nB) {}\nC) {}\nD) {}",
      stripped(row.text("Question")), stripped(choices[order[0]]), stripped(choices[order[1]]),
      stripped(choices[order[2]]), stripped(choices[order[3]]));
  const auto right = std::find(order.begin(), order.end(), 0u) - order.begin();
  item.reference.answers = {std::string(1, upper_letter(right))};
  item.scorer = "gpqa";
  if (row.has("High-level domain")) item.groups.push_back(row.text("High-level domain"));
  item.max_tokens = max_tokens > 0 ? max_tokens : kReasoningTokens;
  return item;
}

}  // namespace

std::vector<SuiteContext> read_math(const SuiteSetting& s) {
  std::vector<SuiteContext> contexts;
  for (const auto& file : files_of(s.data, ".jsonl"))
    if (const std::string task = file.stem().string(); is_wanted(s.tasks, task))
      add_rows(contexts, file, task, s.samples, [n = s.max_tokens](const Row& row, auto) { return math_item(row, n); });
  return contexts;
}

std::vector<SuiteContext> read_gpqa(const SuiteSetting& s) {
  std::vector<SuiteContext> contexts;
  for (const auto& file : files_of(s.data, ".csv")) {
    const std::string task = file.stem().string();
    if (!is_wanted(s.tasks, task)) continue;
    const auto rows = std::make_shared<const std::vector<Row>>(read_csv(file));
    const std::size_t n = s.samples > 0 ? std::min<std::size_t>(rows->size(), s.samples) : rows->size();
    for (std::size_t i = 0; i < n; ++i)
      contexts.push_back({task, 0, std::to_string(i), [rows, i, seed = s.seed, tokens = s.max_tokens] {
                            return std::vector<SuiteItem>{gpqa_item((*rows)[i], i, seed, tokens)};
                          }});
  }
  return contexts;
}

}  // namespace mneme::eval
