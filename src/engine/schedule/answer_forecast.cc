#include "src/engine/schedule/answer_forecast.h"

#include <algorithm>

#include "src/kv/page_pool.h"

namespace mneme {

void AnswerForecast::add(std::int32_t n_tokens) {
  last_[n_++ % last_.size()] = n_tokens;
  const std::ptrdiff_t n = std::min<std::int64_t>(n_, std::ssize(last_));
  std::array<std::int32_t, kRemembered> sorted = last_;
  const auto nine_of_ten = sorted.begin() + (n - 1) * 9 / 10;
  std::nth_element(sorted.begin(), nine_of_ten, sorted.begin() + n);
  high_ = *nine_of_ten;
}

std::int32_t AnswerForecast::tokens(std::int32_t max_tokens, std::int32_t so_far) const {
  if (n_ < kEnough) return max_tokens;
  return std::min(max_tokens, std::max(high_, so_far + kPageTokens));
}

}  // namespace mneme
