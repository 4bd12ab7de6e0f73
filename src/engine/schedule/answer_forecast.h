// How long answers become: what admission counts on where it does not reserve all that they may take.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mneme {

class AnswerForecast {
 public:
  static constexpr std::size_t kRemembered = 256;  // of the last answers
  static constexpr std::int64_t kEnough = 16;      // answers before anything is forecast

  // An answer has ended by itself, at so many tokens of those that it might have had.
  void add(std::int32_t n_tokens);
  // Tokens that an answer of at most max_tokens will have, of which it has `so_far`: as many as nine of ten of the last
  // answers, and a page more than it has; max_tokens until kEnough have ended. At most max_tokens.
  std::int32_t tokens(std::int32_t max_tokens, std::int32_t so_far) const;

 private:
  std::array<std::int32_t, kRemembered> last_{};
  std::int64_t n_ = 0;  // ever
  std::int32_t high_ = 0;
};

}  // namespace mneme
