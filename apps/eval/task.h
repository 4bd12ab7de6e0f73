// Contexts with facts hidden in them, and questions about the facts. The kinds and the wording are those that the
// shipped model was trained on; other models read them as plain English.
//
// A sample is a pure function of (task, seed, number, length, prose). Nothing of the answer is in the question.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/eval/text_source.h"

namespace mneme::eval {

struct Question {
  std::string text;
  std::string answer;  // exactly this, blanks around it apart
  double depth = -1;   // where the (first) fact stands, 0: at the beginning, 1: at the end; -1: spread out
};

struct Sample {
  std::string context;
  // Asked one by one, each over the bare context; `turns` tasks ask them one after the other.
  std::vector<Question> questions;
  bool turns = false;
};

// How many tokens a text has, for the model at hand.
class TokenCounter {
 public:
  virtual ~TokenCounter() = default;
  virtual std::int64_t count(std::string_view text) const = 0;
};

struct TaskRow {
  std::string_view name;
  std::string_view summary;
  int questions_per_context;
  // A context of about `chars` characters.
  Sample (*make)(const TextSource& prose, std::size_t chars, int n_questions, Rng& rng);
};

std::span<const TaskRow> task_table();
// Errors  kOption: no such task (the known ones are named).
const TaskRow& find_task(std::string_view name);

// The `number`-th sample of a task, its context at most `tokens` long and at least 97 % of that (where the task fills
// its context).
Sample make_sample(const TaskRow& task, const TextSource& prose, std::int64_t tokens, std::uint64_t seed,
                   std::int64_t number, const TokenCounter& counter);

// Whether an answer is right: equal, blanks at both ends apart.
bool is_right(std::string_view answer, const Question& question);

}  // namespace mneme::eval
