// A question of a suite as SuiteRunner asks it.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/eval/runs/suite_prompt.h"
#include "apps/eval/runs/suite_runner.h"

namespace mneme::eval {

struct SuiteRunner::Question {
  // A turn that follows: the end of the answer before and the question; the reference answer.
  struct Turn {
    std::vector<std::int32_t> question, answer;
  };
  SuiteItem item;
  SuitePrompt prompt;
  std::vector<std::int32_t> answer;  // of the reference, where turns follow or it is fed
  std::vector<Turn> turns;

  std::int64_t turn_tokens() const {
    std::int64_t n = turns.empty() ? 0 : std::ssize(answer);
    for (const Turn& t : turns) n += std::ssize(t.question) + std::ssize(t.answer);
    return n;
  }
};

}  // namespace mneme::eval
