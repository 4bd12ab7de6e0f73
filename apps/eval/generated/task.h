// Contexts with hidden facts, and questions about them, in the wording that the shipped model was trained on. Other
// models read them as plain English.
//
// A sample is a pure function of (task, seed, number, length, prose). Nothing of the answer is in the question.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/eval/generated/token_counter.h"
#include "apps/eval/prose/text_source.h"

namespace mneme::eval {

struct Question {
  std::string text;
  std::string answer;  // compared exactly, after trimming spaces
  double depth = -1;   // position of the (first) fact, 0: start, 1: end; -1: several positions
};

struct Sample {
  std::string context;
  // Each is asked over the bare context; `turns` tasks ask them in one conversation.
  std::vector<Question> questions;
  bool turns = false;
};

struct TaskEntry {
  std::string_view name;
  std::string_view summary;
  int questions_per_context;
  // A context of about `chars` characters.
  Sample (*make)(const TextSource& prose, std::size_t chars, int n_questions, Rng& rng);
};

std::span<const TaskEntry> task_table();
// Errors  kOption: no such task (the known ones are named).
const TaskEntry& find_task(std::string_view name);

// The `number`-th sample of a task, its context at most `tokens` long and at least 97 % of that (where the task fills
// its context).
Sample make_sample(const TaskEntry& task, const TextSource& prose, std::int64_t tokens, std::uint64_t seed,
                   std::int64_t number, const TokenCounter& counter);

// Whether an answer equals the key after trimming spaces.
bool is_right(std::string_view answer, const Question& question);

}  // namespace mneme::eval
