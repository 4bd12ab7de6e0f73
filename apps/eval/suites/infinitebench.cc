// InfiniteBench, with the prompts for open models ("yarn-mistral").
#include <algorithm>
#include <array>

#include "apps/eval/scorers/words.h"
#include "apps/eval/suites/prompt.h"
#include "apps/eval/suites/rows.h"
#include "apps/eval/suites/suite.h"
#include "src/base/ascii.h"

namespace mneme::eval {
namespace {

struct InfiniteTask {
  std::string_view name;
  std::int32_t answer_tokens;
  std::string_view scorer;
  std::string_view prompt;
};

// Source  OpenBMB/InfiniteBench, src/prompt.py (MIT); the wording is part of the benchmark.
constexpr std::array kTasks = {
    InfiniteTask{"passkey", 6, "first_digits",
                 "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will "
                 "quiz you about the important information there.\n\n{context}\n\n{input}\n\nThe pass key is"},
    InfiniteTask{
        "number_string", 12, "first_digits",
        "There is an important info hidden inside a lot of irrelevant text. Find it. I will quiz you about the "
        "important information there.\n\n{context}\n\n{input}\n\nThe sequence of digits is"},
    InfiniteTask{"kv_retrieval", 50, "word",
                 "Extract the value corresponding to the specified key in the JSON object "
                 "below.\n\n{context}\n\n{input}"},
    InfiniteTask{"longbook_sum_eng", 1200, "rouge_l_sum", "Summarize the book below.\n\n{context}\n\nSummary:"},
    InfiniteTask{"longbook_choice_eng", 40, "infinitebench_choice",
                 "Read the book and answer the question.\n\n{context}\n\nQuestion: {input}\nA. {A}\nB. {B}\nC. {C}\nD. "
                 "{D}\n\nThe letter of the correct answer is"},
    InfiniteTask{"longbook_qa_eng", 40, "f1",
                 "Read the book and answer the question. Be very concise in your answer.\n\n{context}\n\nQuestion: "
                 "{input}\nAnswer:"},
    InfiniteTask{"longbook_qa_chn", 40, "f1_characters",
                 "阅读以下书籍然后回答问题。\n\n{context}\n\n问题：{input}\n答案："},
    InfiniteTask{
        "longdialogue_qa_eng", 40, "dialogue",
        "Below is a dialogue script where one random occurrence of a character name is replaced with "
        "\"$$MASK$$\", and you should try to guess who that character is.\n\n{context}\n\nThe name that has been "
        "replaced with $$MASK$$ is likely"},
    InfiniteTask{"math_find", 3, "first_number", "{prefix}\n\n{context}\n\n{input}"},
    InfiniteTask{"math_calc", 30000, "number_list",
                 "Let us calculate the intermediate values of an expression.\n\nExpression: 1 + 3 + 4\nValues: [1, 4, "
                 "8]\n\nExpression: 8 - 3 + 2 - 4\nValues: [8, 5, 7, 3]\n\nExpression: {context}\nValues:"},
    InfiniteTask{"code_run", 5, "last_word",
                 "There is a function called {func} in the following Python code.\n\n{context}\n\nPlease compute the "
                 "exact value of {func_call}. The value of {func_call} is"},
    InfiniteTask{
        "code_debug", 5, "code_debug",
        "Following is a Python code where exactly one of the functions/methods has a deliberate error that makes "
        "it crash.\n\n{context}\n\nOptions:\nA. {A}\nB. {B}\nC. {C}\nD. {D}\n\nThe correct option is:"},
};

// "func_12(3)" of "Please give me the exact number of the return value of func_12(3).".
std::string function_call(const Row& row) {
  const std::string input = row.text("input");
  const std::size_t at = input.find("func_"), end = input.find(')', at == std::string::npos ? 0 : at);
  if (at == std::string::npos || end == std::string::npos) row.fail_field("input", "a call such as func_1(2)", input);
  return input.substr(at, end + 1 - at);
}

// "What is the smallest number in the following list?" of "... The smallest number of the list is:".
std::string question_before(const Row& row) {
  const std::string input = row.text("input");
  const std::size_t at = input.find("The "), end = input.find(" number", at == std::string::npos ? 0 : at);
  if (at == std::string::npos || end == std::string::npos) row.fail_field("input", "'The ... number'", input);
  return "What is the " + lowered(input.substr(at + 4, end - at - 4)) + " number in the following list?";
}

std::string value_of(const Row& row, std::string_view field) {
  if (field.size() == 1) {
    const auto options = row.texts("options");
    if (options.size() != 4) row.fail_field("options", "four strings", std::to_string(options.size()));
    return options[field[0] - 'A'];
  }
  if (field == "func_call") return function_call(row);
  if (field == "func") return function_call(row).substr(0, function_call(row).find('('));
  if (field == "prefix") return question_before(row);
  return row.text(field);
}

// Choices have the text and the letter.
std::vector<std::string> answers_of(const InfiniteTask& task, const Row& row) {
  auto answers = row.texts("answer");
  if (task.scorer != "infinitebench_choice" && task.scorer != "code_debug") return answers;
  const auto options = row.texts("options");
  const auto at = std::find(options.begin(), options.end(), answers.front());
  if (at == options.end()) row.fail_field("answer", "one of the options", answers.front());
  if (answers.size() == 1) answers.emplace_back(1, upper_letter(at - options.begin()));
  return answers;
}

SuiteItem item_of(const InfiniteTask& task, const Row& row, std::int32_t max_tokens) {
  SuiteItem item;
  item.id = row.text_or("id", "");
  Prompt prompt = fill_template(task.prompt, "context", [&](std::string_view field) { return value_of(row, field); });
  item.prompt = std::move(prompt.text);
  item.question_bytes = prompt.question_bytes;
  item.framing = Framing::kPlain;
  item.reference.answers = answers_of(task, row);
  item.scorer = task.scorer;
  item.max_tokens = max_tokens > 0 ? max_tokens : task.answer_tokens;
  return item;
}

}  // namespace

std::vector<SuiteContext> read_infinitebench(const SuiteSetting& s) {
  std::vector<std::string_view> known;
  for (const InfiniteTask& task : kTasks) known.push_back(task.name);
  check_tasks(s.tasks, known);
  const auto files = files_of(s.data, ".jsonl");
  std::vector<SuiteContext> contexts;
  for (const InfiniteTask& task : kTasks)
    for (const auto& file : files)
      if (file.stem() == task.name && is_wanted(s.tasks, task.name))
        add_rows(contexts, file, std::string(task.name), s.samples,
                 [&task, n = s.max_tokens](const Row& row, auto) { return item_of(task, row, n); });
  return contexts;
}

}  // namespace mneme::eval
