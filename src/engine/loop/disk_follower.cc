#include "src/engine/loop/disk_follower.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/base/check.h"

namespace mneme {

DiskFollower::DiskFollower(const RunningModel& model, const std::optional<DiskOptions>& options) : model_(model) {
  MNEME_CHECK(model.engine->ranks() != nullptr, "a rank that follows");
  if (!options) return;
  const PagePool& pool = model.engine->pool();
  store_.emplace(pool.shape().whole_page_bytes(), store_options(model, *options));
  staging_.emplace(pool, 1);
}

DiskFollower::~DiskFollower() {
  finish();
}

void DiskFollower::finish() {
  while (store_ && store_->in_flight() > 0) poll();
}

void DiskFollower::repeat(RankCall call, ByteReader& in) {
  if (call == RankCall::kDiskStore) {
    const RequestId id(in.read<std::int64_t>("a request"));
    return store(id, read_page_key(in));
  }
  if (call == RankCall::kDiskLoad) {
    const auto tag = in.read<std::uint64_t>("a page");
    return load(tag, read_page_key(in));
  }
  if (call == RankCall::kDiskDrop) return drop(in.read<std::uint64_t>("a load"));
  MNEME_CHECK(call == RankCall::kDiskFill, "a call of the disk");
  const RequestId id(in.read<std::int64_t>("a request"));
  add(id, in.read<std::uint64_t>("a page"));
}

void DiskFollower::store(RequestId id, const PageKey& key) {
  if (!store_) return;
  const SequenceCache& cache = model_.engine->cache(id);
  if (cache.dropped() || key.number < cache.released_pages() || key.number >= cache.length() / kPageTokens) return;
  const auto fill = [&](std::span<std::byte> to) {
    staging_->take(cache, key.number, 1);
    std::ranges::copy(staging_->page(0), to.begin());
  };
  while (store_->store(key, fill) == PageStore::Begun::kBusy) poll();
}

void DiskFollower::load(std::uint64_t tag, const PageKey& key) {
  if (!store_) return;
  store_->find(std::span(&key, 1));  // it is used
  auto begun = store_->load(key, tag);
  for (; begun == PageStore::Begun::kBusy; begun = store_->load(key, tag)) poll();
  if (begun == PageStore::Begun::kYes) in_flight_.insert(tag);
}

void DiskFollower::add(RequestId id, std::uint64_t tag) {
  while (in_flight_.contains(tag)) poll();
  auto page = here_.extract(tag);
  const std::int64_t all = model_.engine->ranks()->least(page.empty() ? 0 : 1);
  if (all == 0) return;
  model_.engine->fill_kept(id, kPageTokens, [&](SequenceCache& cache) {
    std::ranges::copy(page.mapped(), staging_->page(0).begin());
    staging_->put(cache, cache.length() / kPageTokens - 1, std::array{0});
    cache.pool().wait();
  });
}

void DiskFollower::drop(std::uint64_t number) {
  while (in_flight_.lower_bound(number * kPagesOfLoad) != in_flight_.lower_bound((number + 1) * kPagesOfLoad)) poll();
  here_.erase(here_.lower_bound(number * kPagesOfLoad), here_.lower_bound((number + 1) * kPagesOfLoad));
}

void DiskFollower::poll() {
  store_->poll(true, [&](std::uint64_t tag, std::span<const std::byte> bytes) {
    in_flight_.erase(tag);
    if (!bytes.empty()) here_[tag].assign(bytes.begin(), bytes.end());
  });
}

}  // namespace mneme
