#include "apps/eval/runs/forks.h"

#include "src/base/size32.h"

#include <algorithm>

namespace mneme::eval {

void Forks::finish(std::span<Asked> asked, const std::function<void()>& after) {
  while (!engine_.idle()) {
    for (const RequestEvent& event : engine_.step())
      for (Asked& a : asked) {
        if (a.id != event.id) continue;
        if (event.token) a.tokens.push_back(event.token->token);
        if (event.finished) a.ended = *event.finished == StopReason::kEnd || *event.finished == StopReason::kStopString;
      }
    if (after) after();
  }
}

RequestId Forks::compute(std::vector<std::int32_t> prompt, std::int32_t tail, std::shared_ptr<const Plan> method) {
  RequestInput input;
  input.prompt = std::move(prompt);
  input.max_tokens = 0;
  input.decode_prompt_tail = tail;
  input.keep_sequence = true;
  input.method = std::move(method);
  const RequestId id = engine_.start({}, std::move(input));
  finish({});
  return id;
}

RequestId Forks::prepare(RequestId base, std::span<const std::int32_t> document, std::shared_ptr<const Plan> plan) {
  if (plan->observed_rows == 0 || path_ == QuestionPath::kPrefill) {
    if (plan->observed_rows == 0) engine_.attach_method(base, std::move(plan));
    return base;
  }
  const auto n = size32(document), shared = n - std::min(n, plan->observed_rows);
  RequestInput input;
  input.prompt.assign(document.begin() + shared, document.end());
  input.max_tokens = 0;
  input.keep_sequence = true;
  input.method = std::move(plan);
  const RequestId id = engine_.start(Origin::prefix(base, shared), std::move(input));
  finish({});
  return id;
}

RequestId Forks::ask(RequestId base, std::int32_t n_document, RequestInput input) {
  const Plan* plan = input.method.get();
  if (plan == nullptr || plan->observed_rows == 0 || path_ == QuestionPath::kDecode)
    return engine_.start(Origin::fork(base), std::move(input));
  const std::int32_t shared = n_document - std::min(n_document, plan->observed_rows);
  const auto tokens = engine_.tokens(base);
  input.prompt.insert(input.prompt.begin(), tokens.begin() + shared, tokens.end());
  return engine_.start(Origin::prefix(base, shared), std::move(input));
}

}  // namespace mneme::eval
