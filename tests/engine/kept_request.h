// Requests whose sequences are kept, so that tests can look at them.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "src/engine/engine.h"

namespace mneme {

inline RequestInput kept_request(std::vector<std::int32_t> prompt, std::shared_ptr<const Plan> method,
                                 std::int32_t max_tokens = 12) {
  RequestInput input;
  input.prompt = std::move(prompt);
  input.max_tokens = max_tokens;
  input.keep_sequence = true;
  input.method = std::move(method);
  return input;
}

}  // namespace mneme
