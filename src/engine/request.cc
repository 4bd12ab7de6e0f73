#include "src/engine/request.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/size32.h"

namespace mneme {

void check_dropped(const SequenceCache& cache, const Plan* plan) {
  if (plan == nullptr || !cache.dropped()) return;
  if (plan->selects()) {
    fail(ErrorKind::kRequest,
         "tokens of this sequence were dropped by a KV method: '{}' selects among all tokens and cannot go on with it; "
         "'full' and methods that drop can",
         plan->name());
  }
  if (!plan->drops() || plan->drop->scope != DropScope::kLayer) return;
  const KvShape& shape = cache.shape();
  for (std::int32_t layer = 0; layer < shape.n_layers; ++layer)
    for (std::int32_t head = 1; plan->compressed(layer) && head < shape.n_kv_heads; ++head)
      if (cache.n_stored(layer, head) != cache.n_stored(layer, 0))
        fail(
            ErrorKind::kRequest,
            "KV heads of this sequence have dropped different tokens: '{}' decides for all heads of a layer and cannot "
            "go on with it",
            plan->name());
}

void check_method(const Request& sequence, const std::shared_ptr<const Plan>& plan) {
  const std::shared_ptr<const Plan> before = sequence.method ? sequence.method->shared_plan() : nullptr;
  if (sequence.cache.length() == 0 || plan == before) return;
  for (const auto& p : {before, plan}) {
    if (p == nullptr || !p->binds_sequence()) continue;
    fail(ErrorKind::kRequest,
         "request {} was computed under {}; '{}' decides how a prompt is read, so a sequence has it from its first "
         "token "
         "on, or not at all",
         sequence.id.value, before == nullptr ? "full attention" : "'" + before->recipe.name + "'", p->recipe.name);
  }
}

bool Request::is_end(std::int32_t token) const {
  return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
}

bool Request::loses_all() const {
  return cache.dropped() ||
         (method && (method->plan().observed_rows == Plan::kAllRows || method->plan().layer_selection.has_value()));
}

std::int64_t Request::blocks_to(std::int32_t n_tokens) const {
  const std::int32_t n_new = std::max(0, n_tokens - cache.length()), of_prompt = decode_from() - cache.length();
  std::int32_t step = cache.pool().windows().step_tokens;
  if (method && method->plan().window) step = std::max(step, method->plan().window->rows);
  return cache.blocks_to_end(n_new, std::clamp(of_prompt, 1, step));
}

void Request::truncate(std::int32_t to) {
  if (to >= cache.length()) return;
  if (to > 0) settle();
  to = loses_all() ? 0 : cache.longest_cut(to);
  cache.truncate(to);
  if (method) method->truncate(to);
}

void Request::close_pages() {
  settle();
  // Heads that dropped tokens have no common end of a page, even where the sequence's length is one.
  truncate(cache.dropped() ? 0 : cache.length() / kPageTokens * kPageTokens);
}

void Request::step_back(std::int32_t n) {
  const std::int32_t to = cache.length() - n;
  if (!cache.can_truncate(to)) return truncate(to);
  cache.truncate(to);
  if (method) method->step_back(to);
}

void Request::undo(std::int32_t n) {
  // What the rows of a failed step left in the state of a method that cannot take them back is gone with all of it.
  if (method && !method->can_truncate(cache.length() - n)) return truncate(0);
  step_back(n);
}

void Request::set_method(std::shared_ptr<const Plan> plan) {
  settle();
  check_dropped(cache, plan.get());
  if (plan == nullptr) {
    if (cache.length() == 0) cache.set_key_basis(KeyBasis::kPostRope);
    method.reset();
    return;
  }
  if (cache.length() == 0) cache.set_key_basis(plan->key_basis);
  if (method == nullptr || method->shared_plan() != plan) {
    method = std::make_unique<MethodState>(std::move(plan));
  }
}

namespace {

constexpr std::int32_t kStateTokens = 8192;  // from one copy of a long prompt's state to the next

}  // namespace

// Templates end prompts with a few tokens that the next turn may have others for: a header, the start of a thought.
std::int32_t Request::last_state_of_prompt() const {
  constexpr std::int32_t kEndOfTemplate = 8;
  return std::max(0, decode_from() - kEndOfTemplate) / kStateRows * kStateRows;
}

bool Request::keep_state_at(std::int32_t n) {
  const std::int32_t at = n / kStateRows * kStateRows;
  if (!active() || at <= cache.length() || at >= decode_from()) return false;
  keep_states_at.insert(at);
  return true;
}

std::int32_t Request::next_state_kept() const {
  if (!cache.states().any()) return 0;
  const std::int32_t at = cache.length(), end = decode_from();
  std::int32_t next = std::min(end, (at / kStateTokens + 1) * kStateTokens);
  if (last_state_of_prompt() > at) next = std::min(next, last_state_of_prompt());
  const auto marked = keep_states_at.upper_bound(at);
  if (marked != keep_states_at.end()) next = std::min(next, *marked);
  return next < end ? next : 0;
}

bool Request::keeps_state() const {
  const std::int32_t at = cache.length();
  if (!cache.states().any() || at == 0 || at > decode_from()) return false;
  if (at == last_state_of_prompt() || at % kStateTokens == 0 || keep_states_at.contains(at)) return true;
  // A method that reads in windows has its own steps.
  return at == decode_from() && at - cache.states().last_kept() >= 2 * kStateRows;
}

RequestView Request::view(std::int32_t scored_rows, std::int64_t blocks_to_end) const {
  const std::int32_t by_prefill = decode_from() - cache.length();
  RequestPhase phase = by_prefill > 0 ? RequestPhase::kPrefill : RequestPhase::kDecode;
  if (state == State::kWaiting) phase = RequestPhase::kWaiting;
  const bool windows = method && method->plan().window, states = cache.states().any();
  const std::int32_t window = windows ? method->plan().window->rows : states ? kStateRows : 1;
  const std::int32_t kept = windows ? 0 : next_state_kept();
  std::int32_t most_rows = scores.score_prompt ? scored_rows : 0;
  if (kept > 0) most_rows = most_rows == 0 ? kept - cache.length() : std::min(most_rows, kept - cache.length());
  return {.id = id,
          .phase = phase,
          .tokens_left = std::max(by_prefill, 1),
          .first_window = window - cache.length() % window,
          .window = window,
          .blocks_to_end = blocks_to_end,
          .most_rows = most_rows,
          .priority = priority,
          .held = held,
          .group = group,
          .group_limit = group_limit};
}

void Request::begin_turn(RequestInput input) {
  settle();
  tokens.insert(tokens.end(), input.prompt.begin(), input.prompt.end());
  // Logits come from computing a token: where nothing is pending, the last one is computed once more.
  if (cache.length() == length()) step_back(1);
  prompt_end = length();
  tail = std::min(input.decode_prompt_tail, size32(input.prompt));
  // Nothing new: what is pending is the end of an answer, and is computed as an answer is.
  if (input.prompt.empty()) tail = 1;
  set_method(std::move(input.method));
  const std::int32_t prompt_begin = prompt_end - size32(input.prompt);
  if (method && input.question_span.first < input.question_span.second)
    method->set_question_span(prompt_begin + input.question_span.first, prompt_begin + input.question_span.second);
  max_tokens = input.max_tokens;
  end_tokens = std::move(input.end_tokens);
  priority = input.priority;
  group = input.group;
  group_limit = input.group_limit;
  refill_end = 0;
  keep_states_at.clear();
  begun = false;
  keep = input.keep_sequence;
  held = false;
  scores = {.score_tail = input.score_tail,
            .score_prompt = input.score_prompt,
            .top_logprobs = input.top_logprobs,
            .on_logits = std::move(input.on_logits),
            .prompt = {}};
  stats = {};
  state = State::kWaiting;
}

}  // namespace mneme
