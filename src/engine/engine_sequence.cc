// Sequences as they leave the engine and come into it: saved sessions.
#include <utility>

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
  const std::int64_t needed = blocks_of(impl_->pool->shape(), n_computed);
  // By forecast, who runs has no more than a hope of the rest.
  const auto fits = [&] {
    return needed + (impl_->forecasts() ? 0 : impl_->reserved_blocks()) <= impl_->pool->n_free();
  };
  impl_->take_pages(nullptr, fits);
  if (!fits()) {
    fail(ErrorKind::kResource,
         "a sequence of {} tokens takes {} blocks of keys and values; {} of {} are free, {} of them promised to "
         "requests "
         "that run",
         n_computed, needed, impl_->pool->n_free(), impl_->pool->n_blocks(), impl_->reserved_blocks());
  }
  SequenceCache cache(*impl_->pool);  // goes away with its pages if `fill` throws
  if (method) cache.set_key_basis(method->plan().key_basis);
  cache.extend(n_computed);
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

}  // namespace mneme
