#include "src/engine/request.h"

#include <algorithm>

namespace mneme {

bool Request::is_end(std::int32_t token) const {
  return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
}

void Request::truncate(std::int32_t to) {
  if (to >= cache.length()) return;
  if (method && !method->can_truncate(to)) to = 0;
  cache.truncate(to);
  if (method) method->truncate(to);
}

void Request::step_back() {
  const std::int32_t to = cache.length() - 1;
  cache.truncate(to);
  if (method) method->step_back(to);
}

void Request::set_method(std::shared_ptr<const Plan> plan) {
  if (plan == nullptr) {
    if (cache.length() == 0) cache.set_key_basis(KeyBasis::kTurned);
    method.reset();
    return;
  }
  if (cache.length() == 0) cache.set_key_basis(plan->key_basis);
  if (method == nullptr || method->shared_plan() != plan) {
    method = std::make_unique<MethodState>(std::move(plan));
  }
}

RequestView Request::view(std::int32_t scored_rows) const {
  const std::int32_t by_prefill = decode_from() - cache.length();
  RequestPhase phase = by_prefill > 0 ? RequestPhase::kPrefill : RequestPhase::kDecode;
  if (state == State::kWaiting) phase = RequestPhase::kWaiting;
  const bool windows = method && method->plan().recipe.prefill_window;
  const std::int32_t window = windows ? method->plan().recipe.prefill_window->rows : 1;
  return {.id = id,
          .phase = phase,
          .tokens_left = std::max(by_prefill, 1),
          .first_window = window - cache.length() % window,
          .window = window,
          .blocks_to_end = blocks_to_end(),
          .most_rows = score_prompt ? scored_rows : 0,
          .priority = priority};
}

void Request::begin_turn(RequestInput input) {
  tokens.insert(tokens.end(), input.prompt.begin(), input.prompt.end());
  // Logits come from computing a token: where nothing is pending, the last one is computed once more.
  if (cache.length() == length()) step_back();
  prompt_end = length();
  tail = std::min(input.decode_prompt_tail, static_cast<std::int32_t>(input.prompt.size()));
  // Nothing new: what is pending is the end of an answer, and is computed as an answer is.
  if (input.prompt.empty()) tail = 1;
  set_method(std::move(input.method));
  const std::int32_t prompt_begin = prompt_end - static_cast<std::int32_t>(input.prompt.size());
  if (method && input.question_span.first < input.question_span.second)
    method->set_question_span(prompt_begin + input.question_span.first, prompt_begin + input.question_span.second);
  max_tokens = input.max_tokens;
  end_tokens = std::move(input.end_tokens);
  priority = input.priority;
  keep = input.keep_sequence;
  score_tail = input.score_tail;
  score_prompt = input.score_prompt;
  prompt_scores.clear();
  top_logprobs = input.top_logprobs;
  stats = {};
  state = State::kWaiting;
}

}  // namespace mneme
