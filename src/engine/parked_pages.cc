#include "src/engine/parked_pages.h"

#include <memory>
#include <span>
#include <utility>

namespace mneme {
namespace {

// Nothing was dropped, no layer released pages or has a state, and no device remembers what it cannot be told again.
bool can_park(const Request& r) {
  const PagePool& pool = r.cache.pool();
  return !r.cache.dropped() && pool.windows().n_layers() == 0 && pool.shape().state_bytes == 0 &&
         !(pool.on_device() && r.loses_all());
}

}  // namespace

void park(Request& r, LowerTier& lower) {
  r.settle();
  if (!r.parked && !can_park(r)) return;
  const std::int32_t length = r.parked ? r.parked->length : r.cache.length();
  const std::int32_t first = r.loses_all() ? 0 : r.cache.n_pages() - 1;
  if (!lower.park(r.id, std::span(r.tokens).first(length), r.cache, first)) return r.parked.reset();
  if (r.parked) return;
  r.parked.emplace();
  r.parked->length = length;
  if (r.method) r.parked->method = std::make_unique<MethodState>(*r.method);
}

void unpark(Request& r, LowerTier* lower) {
  if (!r.parked) return;
  lower->forget(r.id);
  r.parked.reset();
}

std::int32_t bring_back(Request& r, LowerTier& lower) {
  const std::int32_t before = r.cache.length(), n = r.parked->length - before;
  r.cache.extend(n);
  if (!lower.bring_back(r.id, r.cache, before / kPageTokens)) {
    r.cache.truncate(before);
    unpark(r, &lower);
    return 0;
  }
  if (r.method) r.method = std::move(r.parked->method);
  if (r.cache.length() + 1 >= r.refill_end) r.refill_end = 0;  // nothing is computed twice
  unpark(r, &lower);
  r.state = Request::State::kRunning;
  return n;
}

}  // namespace mneme
