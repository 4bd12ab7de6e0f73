#include "src/engine/loop/host_tier.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/size32.h"

namespace mneme {

HostTier::HostTier(RunningModel& model, std::int64_t bytes) : model_(model), store_(model.engine->pool(), bytes) {}

void HostTier::keep(RequestId id, std::span<const TokenId> tokens, const std::string& salt) {
  kept_[id] = page_keys(tokens, salt);
}

void HostTier::write_now(RequestId id) {
  const auto kept = kept_.extract(id);
  const SequenceCache& cache = model_.engine->cache(id);
  if (kept.empty() || cache.dropped() || cache.released_pages() > 0) return;
  const std::vector<PageKey>& keys = kept.mapped();
  store_.find(keys);  // used with that
  store_.store(cache, std::span(keys).first(std::min(size32(keys), cache.length() / kPageTokens)));
}

std::int32_t HostTier::find(std::span<const TokenId> tokens, const std::string& salt) {
  return store_.find(page_keys(tokens, salt)) * kPageTokens;
}

RequestId HostTier::fetch(std::span<const TokenId> tokens, const std::string& salt, RequestId from,
                          std::int32_t n_shared, FunctionRef<void(std::int64_t)> make_room) {
  const std::vector<PageKey> keys = page_keys(tokens, salt);
  Engine& engine = *model_.engine;
  const std::int32_t shared = pages_to_share(engine.pool(), from, n_shared);
  const auto missing = std::span(keys).subspan(shared);
  // Who makes room stores other pages here.
  store_.hold(missing);
  const RequestId id = engine.adopt_prefix({tokens.begin(), tokens.end()}, from, shared * kPageTokens);
  make_room(engine.cache(id).blocks_needed(size32(missing) * kPageTokens));
  std::int32_t n = size32(missing);
  const auto load = [&](SequenceCache& cache) { store_.load(cache, missing.first(n)); };
  while (n > 0 && !engine.fill_kept(id, n * kPageTokens, load)) n /= 2;
  store_.release(missing);
  return id;
}

void HostTier::kept_loses(RequestId id, const SequenceCache& cache) {
  const auto kept = kept_.find(id);
  const std::int32_t page = cache.n_pages() - 1;
  if (kept == kept_.end() || page >= size32(kept->second) || cache.released_pages() > 0) return;
  store_.store(cache, std::span(kept->second).subspan(page, 1));
}

bool HostTier::park(RequestId id, std::span<const std::int32_t> tokens, const SequenceCache& cache,
                    std::int32_t first_page) {
  const auto [at, is_new] = parked_.try_emplace(id);
  Parked& parked = at->second;
  if (is_new) {
    parked.keys = parked_keys(tokens, id);
    parked.first = size32(parked.keys);
  }
  MNEME_CHECK(cache.n_pages() == parked.first, "request {} has {} pages, and {} are not here", id.value,
              cache.n_pages(), parked.first);
  const auto pages = std::span(parked.keys).subspan(first_page, parked.first - first_page);
  if (!store_.store(cache, pages)) {
    store_.drop(pages);
    forget(id);
    return false;
  }
  store_.hold(pages);
  parked.first = first_page;
  return true;
}

bool HostTier::bring_back(RequestId id, SequenceCache& cache, std::int32_t first_page) {
  const Parked& parked = parked_.at(id);
  MNEME_CHECK(parked.first == first_page, "request {}: pages from {} on are here, not from {}", id.value, parked.first,
              first_page);
  store_.load(cache, parked.here());
  return true;
}

void HostTier::forget(RequestId id) {
  const auto parked = parked_.extract(id);
  if (parked.empty()) return;
  store_.release(parked.mapped().here());
  store_.drop(parked.mapped().here());
}

}  // namespace mneme
