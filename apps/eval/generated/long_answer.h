// Questions whose answers have thousands of tokens over a context that matters for every line of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/eval/generated/token_counter.h"
#include "apps/eval/prose/text_source.h"

namespace mneme::eval {

struct LongTurn {
  std::string question, answer;
};

struct LongQuestion {
  std::string document, question;
  std::string answer;           // lines
  std::vector<LongTurn> turns;  // further questions, in the same conversation
};

struct LongTask {
  std::string_view name;
  std::string_view summary;
  // A document of n entries.
  LongQuestion (*make)(const TextSource& prose, std::int64_t n, Rng& rng);
};

std::span<const LongTask> long_tasks();

// The `number`-th sample: the document has at most `tokens` tokens, its answer at most `answer_tokens` (fewer entries
// are asked for where the whole would be longer). Of a conversation, all answers and the questions behind the first one
// together have so many, but for what frames a turn.
//
// Errors  kOption: `tokens` is too short for the task.
LongQuestion make_long(const LongTask& task, const TextSource& prose, const TokenCounter& counter, std::int64_t tokens,
                       std::int64_t answer_tokens, std::uint64_t seed, std::int64_t number);

}  // namespace mneme::eval
