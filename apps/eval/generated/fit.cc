#include "apps/eval/generated/fit.h"

#include <string>

#include "src/base/error.h"

namespace mneme::eval {

Fit largest_fit(std::string_view what, std::int64_t tokens, std::int64_t step, const TokenCounter& counter,
                FunctionRef<GeneratedQuestion(std::int64_t size)> make) {
  const auto fits = [&](const GeneratedQuestion& q) { return counter.count(q.prompt + q.answer_prefix) <= tokens; };
  GeneratedQuestion best = make(step);
  if (!fits(best))
    fail(ErrorKind::kOption, "{}: the shortest sample has more than {} tokens; ask for a longer context", what, tokens);
  std::int64_t low = 1, high = 2;  // multiples: low fits, high does not
  for (;; high *= 2) {
    GeneratedQuestion q = make(high * step);
    if (!fits(q)) break;
    low = high;
    best = std::move(q);
  }
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    GeneratedQuestion q = make(middle * step);
    if (fits(q)) {
      low = middle;
      best = std::move(q);
    } else {
      high = middle;
    }
  }
  return {std::move(best), low * step};
}

}  // namespace mneme::eval
