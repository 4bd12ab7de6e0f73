// How requests begin: what is checked first, and what they take over from other sequences.
#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/engine/engine_impl.h"
#include "src/engine/kv_plan.h"

namespace mneme {

void Engine::Impl::check_input(const RequestInput& input, std::span<const std::int32_t> before) const {
  if (input.method != nullptr) forward->expect_method(*input.method);
  const auto vocab = forward->vocab();
  for (std::size_t i = 0; i < input.prompt.size(); ++i) {
    if (input.prompt[i] < 0 || input.prompt[i] >= vocab) {
      fail(ErrorKind::kRequest, "prompt: token {} at {} is not in the vocabulary, which has {}", input.prompt[i], i,
           vocab);
    }
  }
  for (const TokenBias& b : input.sampling.logit_bias) {
    if (b.token >= vocab) {
      fail(ErrorKind::kOption, "logit_bias: token {} is not in the vocabulary, which has {}", b.token, vocab);
    }
    const Model* const model = forward->model();
    if (model != nullptr && std::ranges::binary_search(model->absent_tokens(), b.token))
      fail(ErrorKind::kOption, "logit_bias: the id {} has no token and is never sampled; leave it out", b.token);
  }
  if (input.max_tokens < 0) fail(ErrorKind::kRequest, "max_tokens: expected 0 or more, found {}", input.max_tokens);
  if (input.decode_prompt_tail < 0) {
    fail(ErrorKind::kRequest, "decode_prompt_tail: expected 0 or more, found {}", input.decode_prompt_tail);
  }
  const auto [question_begin, question_end] = input.question_span;
  if (question_begin < 0 || question_begin > question_end || question_end > std::ssize(input.prompt)) {
    fail(ErrorKind::kRequest, "question_span: expected tokens of the prompt, which has {}, found {} to {}",
         input.prompt.size(), question_begin, question_end);
  }
  const std::int64_t n_prompt = before.size() + input.prompt.size();
  if (n_prompt == 0) fail(ErrorKind::kRequest, "the prompt is empty: expected at least one token");
  const std::int64_t n_all = n_prompt + input.max_tokens;
  if (n_all > options.context) {
    fail(ErrorKind::kRequest, "{} tokens of prompt and up to {} of answer are {}; the context has {}", n_prompt,
         input.max_tokens, n_all, options.context);
  }
  const std::int64_t blocks = blocks_of(pool->shape(), pool->windows(), n_all);
  if (blocks > pool->n_blocks()) {
    const std::int64_t bytes = pool->shape().page_bytes();
    fail(ErrorKind::kRequest, "{} tokens take {} bytes of KV cache; there are {} in all", n_all, blocks * bytes,
         pool->n_blocks() * bytes);
  }
}

Request* Engine::Impl::origin_of(const Origin& origin, const RequestInput& input) {
  Request* from = nullptr;
  std::span<const std::int32_t> before;
  if (origin.kind != Origin::Kind::kNothing) {
    from = &find_sequence(origin.from);
    if (origin.kind == Origin::Kind::kNextTurn && from->active())
      fail(ErrorKind::kRequest, "request {} has not ended yet: it cannot go on", from->id.value);
    from->settle();
    before = from->tokens;
  }
  if (origin.kind == Origin::Kind::kPrefix) {
    MNEME_CHECK(origin.n_shared >= 0 && origin.n_shared <= from->length(), "{} of {} tokens", origin.n_shared,
                from->length());
    before = before.first(origin.n_shared);
  }
  check_input(input, before);
  if (from != nullptr) check_method(*from, input.method);
  if (from != nullptr && origin.kind != Origin::Kind::kPrefix) check_dropped(from->cache, input.method.get());
  static_cast<void>(Sampler(input.sampling));  // says what is out of range
  return from;
}

void Engine::Impl::begin(Request& request, RequestInput input) {
  Sampler sampler(input.sampling);
  const std::uint64_t draws_before = input.draws_before;
  sampler.constrain(input.constraint);
  request.begin_turn(std::move(input));
  request.sampler = std::move(sampler);
  if (draws_before > 0) request.sampler.restore(request.sampler.seed(), draws_before);
  request.sampler.see_prompt(request.tokens);
  request.last_used = ++use_clock;
  active.push_back(&request);
}

namespace {

// Of the parent's first n_shared tokens those that a request under `plan`, whose prefill ends at n_prefill, need not
// compute itself.
std::int32_t usable_prefix(const Request& parent, std::int32_t n_shared, const std::shared_ptr<const Plan>& plan,
                           std::int32_t n_prefill) {
  if (parent.cache.dropped()) return 0;
  const std::int32_t n_rows = std::min(n_prefill, plan != nullptr ? plan->observed_rows : 0);
  const std::int32_t n = std::max(0, std::min({n_shared, parent.cache.length(), n_prefill - n_rows}));
  const bool same_method = parent.method && parent.method->shared_plan() == plan;
  if (same_method && n < parent.cache.length() && !parent.method->can_truncate(n)) return 0;
  return parent.cache.longest_cut(n);
}

// The pages of these tokens, and the parent's index where the plan is the same.
void share_prefix(const Request& parent, std::int32_t n_shared, const std::shared_ptr<const Plan>& plan,
                  std::int32_t n_prefill, Request& request) {
  const std::int32_t shared = usable_prefix(parent, n_shared, plan, n_prefill);
  request.cache = parent.cache.fork();
  request.cache.truncate(shared);
  if (parent.method && parent.method->shared_plan() == plan)
    request.method = std::make_unique<MethodState>(parent.method->index_of_prefix(shared));
}

}  // namespace

void Engine::Impl::close_pages_without_room(Request& request) {
  if (!agreed(reserved_blocks() <= pool->n_free())) request.close_pages();
  // Pages of a window that the request took back, or that a running one owned alone, are promised to others; so is the
  // state that a running one must copy now.
  if ((pool->windows().n_layers() > 0 || pool->shape().state_bytes > 0) && !has_unpromised(0)) request.truncate(0);
}

void Engine::Impl::share(const Request& from, const Origin& origin, const RequestInput& input, Request& request) {
  if (origin.kind == Origin::Kind::kFork) {
    request.tokens = from.tokens;
    request.cache = from.cache.fork();
    if (from.method) request.method = std::make_unique<MethodState>(*from.method);
  } else {
    request.tokens.assign(from.tokens.begin(), from.tokens.begin() + origin.n_shared);
    const auto n_prompt = size32(input.prompt);
    share_prefix(from, origin.n_shared, input.method,
                 origin.n_shared + n_prompt - std::min(n_prompt, input.decode_prompt_tail), request);
  }
  // A running parent must now copy the page that it writes into, which admission did not count.
  close_pages_without_room(request);
}

RequestId Engine::start(const Origin& origin, RequestInput input) {
  Request* const from = impl_->origin_of(origin, input);
  if (origin.kind == Origin::Kind::kNextTurn) {
    std::erase_if(impl_->events, [&](const RequestEvent& e) { return e.id == from->id; });
    impl_->begin(*from, std::move(input));
    return from->id;
  }
  Request& request = impl_->add(RequestId(impl_->next_id++));
  if (from != nullptr) impl_->share(*from, origin, input, request);
  impl_->begin(request, std::move(input));
  return request.id;
}

bool Engine::Impl::can_take_prefix(RequestId id, RequestId from, std::int32_t n_shared) {
  Request& request = find_sequence(id);
  Request& parent = find_sequence(from);
  const std::int32_t before = request.cache.length();
  MNEME_CHECK(request.active() && before < request.decode_from() && n_shared < request.length(),
              "request {} has computed {} of {} tokens: it can take over no {}", id.value, before, request.length(),
              n_shared);
  const std::shared_ptr<const Plan> plan = request.method ? request.method->shared_plan() : nullptr;
  const bool runs = request.state == Request::State::kRunning;
  if (runs && (request.wants_prompt_scores() || (plan != nullptr && pool->on_device()))) return false;
  // What it was promised counts on the pages of a window, or the state, that it owns.
  if (runs && (pool->windows().n_layers() > 0 || pool->shape().state_bytes > 0)) return false;
  if (request.parked && request.parked->length >= n_shared) return false;
  parent.settle();
  MNEME_CHECK(n_shared <= parent.cache.length() &&
                  std::equal(parent.tokens.begin(), parent.tokens.begin() + n_shared, request.tokens.begin()),
              "request {} does not begin with {} tokens of request {}", id.value, n_shared, from.value);
  check_method(parent, plan);
  return usable_prefix(parent, n_shared, plan, request.decode_from()) > before;
}

bool Engine::keep_state_at(RequestId id, std::int32_t n) {
  return impl_->find_sequence(id).keep_state_at(n);
}

std::int32_t Engine::take_prefix(RequestId id, RequestId from, std::int32_t n_shared) {
  Request& request = impl_->find_sequence(id);
  const std::int32_t before = request.cache.length();
  if (!impl_->can_take_prefix(id, from, n_shared)) return before;
  const std::shared_ptr<const Plan> plan = request.method ? request.method->shared_plan() : nullptr;
  const auto question = request.method ? request.method->question_span() : std::pair(0, 0);
  unpark(request, impl_->lower);
  request.method.reset();
  share_prefix(impl_->find_sequence(from), n_shared, plan, request.decode_from(), request);
  impl_->close_pages_without_room(request);
  request.set_method(plan);
  if (question.first < question.second) request.method->set_question_span(question.first, question.second);
  if (request.state == Request::State::kRunning) request.stats.shared_tokens += request.cache.length() - before;
  return request.cache.length();
}

}  // namespace mneme
