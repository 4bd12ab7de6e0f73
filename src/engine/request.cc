#include "src/engine/request.h"

#include <algorithm>

namespace mneme {

bool Request::is_end(std::int32_t token) const {
  return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
}

RequestView Request::view() const {
  const std::int32_t by_prefill = prompt_end - tail - cache.length();
  RequestPhase phase = by_prefill > 0 ? RequestPhase::kPrefill : RequestPhase::kDecode;
  if (state == State::kWaiting) phase = RequestPhase::kWaiting;
  return {.id = id,
          .phase = phase,
          .tokens_left = std::max(by_prefill, 1),
          .blocks_to_end = blocks_to_end(),
          .priority = priority};
}

void Request::begin_turn(RequestInput input) {
  tokens.insert(tokens.end(), input.prompt.begin(), input.prompt.end());
  // Logits come from computing a token: where nothing is pending, the last one is computed once more.
  if (cache.length() == length()) cache.truncate(length() - 1);
  prompt_end = length();
  tail = std::min(input.decode_prompt_tail, static_cast<std::int32_t>(input.prompt.size()));
  max_tokens = input.max_tokens;
  end_tokens = std::move(input.end_tokens);
  priority = input.priority;
  keep = input.keep_sequence;
  stats = {};
  state = State::kWaiting;
}

}  // namespace mneme
