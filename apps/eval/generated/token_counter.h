// Counts tokens, so that questions can be made at a given length without knowing a tokenizer.
#pragma once

#include <cstdint>
#include <string_view>

namespace mneme::eval {

class TokenCounter {
 public:
  virtual ~TokenCounter() = default;
  virtual std::int64_t count(std::string_view text) const = 0;
};

}  // namespace mneme::eval
