// Sequences as they leave the engine and come into it: saved sessions.
#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/engine/engine_impl.h"
#include "src/engine/kv_plan.h"

namespace mneme {

const SequenceCache& Engine::cache(RequestId id) const {
  impl_->settle(id);
  return impl_->find(id).cache;
}

const MethodState* Engine::method(RequestId id) const {
  impl_->settle(id);
  return impl_->find(id).method.get();
}

const Sampler& Engine::sampler(RequestId id) const {
  return impl_->find(id).sampler;
}

RequestId Engine::adopt(std::vector<std::int32_t> tokens, std::int32_t n_computed,
                        FunctionRef<void(SequenceCache&)> fill, std::unique_ptr<MethodState> method) {
  RequestInput input{.prompt = std::move(tokens), .max_tokens = 0};
  impl_->check_input(input, {});
  const auto n_tokens = size32(input.prompt);
  if (n_computed < 0 || n_computed > n_tokens) {
    fail(ErrorKind::kRequest, "{} of {} tokens are computed: expected 0 to all of them", n_computed, n_tokens);
  }
  const KvWindows& windows = impl_->pool->windows();
  const std::int64_t needed = blocks_of(impl_->pool->shape(), windows, n_computed);
  const auto fits = [&] { return impl_->agreed(impl_->has_unpromised(needed)); };
  impl_->take_pages(nullptr, fits);
  if (!fits()) {
    fail(ErrorKind::kResource,
         "a sequence of {} tokens takes {} blocks of KV cache; {} of {} are free, {} of them promised to "
         "requests "
         "that run",
         n_computed, needed, impl_->pool->n_free(), impl_->pool->n_blocks(), impl_->reserved_blocks());
  }
  SequenceCache cache(*impl_->pool);  // goes away with its pages if `fill` throws
  if (method) cache.set_key_basis(method->plan().key_basis);
  const std::int32_t step = windows.n_layers() > 0 ? windows.step_tokens : n_computed;
  while (cache.length() < n_computed) {
    cache.extend(std::min(step, n_computed - cache.length()));
    cache.release_first(windows.first_page(cache.length() - KvWindows::kSlack), true);
  }
  fill(cache);
  Request& request = impl_->add(RequestId(impl_->next_id++));
  request.tokens = std::move(input.prompt);
  request.cache = std::move(cache);
  request.method = std::move(method);
  request.prompt_end = n_tokens;
  request.keep = true;
  request.state = Request::State::kKept;
  request.last_used = ++impl_->use_clock;
  return request.id;
}

// By forecast, who runs has no more than a hope of the rest.
bool Engine::Impl::has_unpromised(std::int64_t n_blocks) const {
  return n_blocks + (forecasts() ? 0 : reserved_blocks()) <= pool->n_free();
}

RequestId Engine::adopt_prefix(std::vector<std::int32_t> tokens, RequestId from, std::int32_t n_shared) {
  RequestInput input{.prompt = std::move(tokens), .max_tokens = 0};
  impl_->check_input(input, {});
  Request& request = impl_->add(RequestId(impl_->next_id++));
  if (n_shared > 0) {
    Request& parent = impl_->find_sequence(from);
    parent.settle();
    MNEME_CHECK(!parent.cache.dropped() && parent.cache.can_truncate(n_shared) && n_shared <= parent.cache.length() &&
                    std::equal(input.prompt.begin(), input.prompt.begin() + n_shared, parent.tokens.begin()),
                "{} tokens of request {}", n_shared, from.value);
    request.cache = parent.cache.fork();
    request.cache.truncate(n_shared);
  }
  request.tokens = std::move(input.prompt);
  request.prompt_end = request.length();
  request.keep = true;
  request.state = Request::State::kKept;
  request.last_used = ++impl_->use_clock;
  return request.id;
}

bool Engine::fill_kept(RequestId id, std::int32_t n_tokens, FunctionRef<void(SequenceCache&)> fill) {
  Request& request = impl_->find_sequence(id);
  MNEME_CHECK(request.state == Request::State::kKept && request.cache.length() + n_tokens <= request.length(),
              "request {}: {} more of {} tokens", id.value, n_tokens, request.length());
  const auto fits = [&] { return impl_->agreed(impl_->has_unpromised(request.cache.blocks_needed(n_tokens))); };
  impl_->take_pages(&request, fits);
  if (!fits()) return false;
  request.cache.extend(n_tokens);
  fill(request.cache);
  request.cache.release_behind();
  return true;
}

}  // namespace mneme
