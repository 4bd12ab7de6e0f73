#include "apps/eval/generated/fit.h"

#include <algorithm>
#include <string>

#include "src/base/error.h"

namespace mneme::eval {

Fit largest_fit(std::string_view what, std::int64_t tokens, std::int64_t step, const TokenCounter& counter,
                FunctionRef<GeneratedQuestion(std::int64_t size)> make) {
  const auto tokens_of = [&](const GeneratedQuestion& q) { return counter.count(q.prompt + q.answer_prefix); };
  GeneratedQuestion best = make(step);
  // Multiples of the step: low fits, high (0: none known) does not.
  std::int64_t low = 1, high = 0, low_tokens = tokens_of(best), high_tokens = 0;
  if (low_tokens > tokens)
    fail(ErrorKind::kOption, "{}: the shortest sample has {} tokens, more than {}; ask for a longer context", what,
         low_tokens, tokens);
  for (int trial = 0; high == 0 || high - low > 1; ++trial) {
    // Prompts grow nearly by a line: the guess is where it meets `tokens`, between what is known; every other one is
    // the middle, so that it ends.
    std::int64_t guess = low * 2;
    if (high > 0 && trial % 2 != 0)
      guess = low + (high - low) / 2;
    else if (high > 0)
      guess = low + (high - low) * (tokens - low_tokens) / std::max<std::int64_t>(high_tokens - low_tokens, 1);
    else if (low > 1)
      guess = low * tokens / std::max<std::int64_t>(low_tokens, 1);
    guess = std::max(guess, low + 1);
    if (high > 0) guess = std::min(guess, high - 1);
    GeneratedQuestion q = make(guess * step);
    const std::int64_t n = tokens_of(q);
    if (n <= tokens) {
      low = guess, low_tokens = n;
      best = std::move(q);
    } else {
      high = guess, high_tokens = n;
    }
  }
  return {std::move(best), low * step};
}

}  // namespace mneme::eval
