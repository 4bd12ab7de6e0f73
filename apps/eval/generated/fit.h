// The largest sample that fits a number of tokens.
#pragma once

#include <cstdint>

#include "apps/eval/generated/generated.h"
#include "apps/eval/generated/token_counter.h"
#include "src/base/function_ref.h"

namespace mneme::eval {

struct Fit {
  GeneratedQuestion question;
  std::int64_t size = 0;  // it was made with
};

// make(size) at the largest multiple of `step` whose prompt and prefix have at most `tokens` tokens, by
// interpolation between multiples.
//
// Requires  step >= 1; prompts grow with their size. Errors  kOption: make(step) does not fit; `what` names the task.
Fit largest_fit(std::string_view what, std::int64_t tokens, std::int64_t step, const TokenCounter& counter,
                FunctionRef<GeneratedQuestion(std::int64_t size)> make);

}  // namespace mneme::eval
