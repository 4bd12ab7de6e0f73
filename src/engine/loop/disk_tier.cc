#include "src/engine/loop/disk_tier.h"

#include <algorithm>
#include <utility>

#include "src/base/size32.h"

namespace mneme {

DiskTier::DiskTier(RunningModel& model, const DiskOptions& options)
    : model_(model),
      link_(model.engine->ranks()),
      store_(model.engine->pool().shape().whole_page_bytes(), store_options(model, options)),
      leaving_(model.engine->pool(), store_.n_buffers()),
      arriving_(model.engine->pool(), 2 * store_.n_buffers()) {
  for (std::int32_t i = 0; i < arriving_.n_pages(); ++i) free_.push_back(i);
}

void DiskTier::tell(RankCall call, FunctionRef<void(ByteWriter&)> arguments) const {
  if (link_ != nullptr) link_->call(call, true, arguments);
}

DiskTier::~DiskTier() {
  try {
    while (!writes_.empty()) write_now(writes_.front().id);
  } catch (const RanksStopped&) {  // the next step would say so
  }
  while (store_.in_flight() > 0) store_.poll(true, [](std::uint64_t, std::span<const std::byte>) {});
}

void DiskTier::keep(RequestId id, std::span<const TokenId> tokens, const std::string& salt) {
  forget(id);
  if (model_.engine->cache(id).dropped()) return;
  std::vector<PageKey> keys = page_keys(tokens, salt);
  const std::int32_t there = store_.find(keys);
  if (there < size32(keys)) writes_.push_back({.id = id, .keys = std::move(keys), .next = there});
}

void DiskTier::forget(RequestId id) {
  std::erase_if(writes_, [&](const Write& w) { return w.id == id; });
}

// As many as there are buffers for, by one copy. False: no buffer is free.
bool DiskTier::write_pages(Write& write) {
  while (write.next < size32(write.keys) && store_.contains(write.keys[write.next])) ++write.next;
  const SequenceCache& cache = model_.engine->cache(write.id);
  const std::int32_t end = std::min(size32(write.keys), cache.length() / kPageTokens);
  if (cache.dropped() || write.next < cache.released_pages() || write.next >= end) {
    write.next = size32(write.keys);  // written, or lost before that
    return true;
  }
  const std::int32_t n = std::min(store_.n_free_buffers(), end - write.next);
  if (n == 0) return false;
  leaving_.take(cache, write.next, n);
  for (std::int32_t i = 0; i < n; ++i, ++write.next) {
    const PageKey& key = write.keys[write.next];
    const auto fill = [&](std::span<std::byte> to) { std::ranges::copy(leaving_.page(i), to.begin()); };
    if (store_.store(key, fill) != PageStore::Begun::kYes) continue;
    tell(RankCall::kDiskStore, [&](ByteWriter& out) {
      out.put(write.id.value);
      write_page_key(key, out);
    });
  }
  return true;
}

void DiskTier::write_now(RequestId id) {
  const auto it = std::find_if(writes_.begin(), writes_.end(), [&](const Write& w) { return w.id == id; });
  if (it == writes_.end()) return;
  while (it->next < size32(it->keys))
    if (!write_pages(*it)) poll(true);
  writes_.erase(it);
}

// As many as there are buffers for: that bounds what a step waits for copies.
void DiskTier::write_some() {
  while (!writes_.empty()) {
    Write& write = writes_.front();
    if (write.next == size32(write.keys)) {
      writes_.pop_front();
    } else if (!write_pages(write)) {
      return;
    }
  }
}

std::int32_t DiskTier::find(std::span<const TokenId> tokens, const std::string& salt) {
  return store_.find(page_keys(tokens, salt)) * kPageTokens;
}

const DiskTier::Arrival& DiskTier::fetch(std::span<const TokenId> tokens, const std::string& salt, RequestId from,
                                         std::int32_t n_shared) {
  for (const auto& [number, load] : loads_) {
    const std::vector<TokenId>& t = load.arrival.tokens;
    if (load.arrival.salt == salt && t.size() >= tokens.size() && std::equal(tokens.begin(), tokens.end(), t.begin()))
      return load.arrival;
  }
  Load& load = loads_[next_load_++];
  load.arrival.tokens.assign(tokens.begin(), tokens.end());
  load.arrival.salt = salt;
  load.keys = page_keys(tokens, salt);
  load.asked = load.filled = pages_to_share(model_.engine->pool(), from, n_shared);
  load.end = size32(load.keys);
  load.arrival.id = model_.engine->adopt_prefix(load.arrival.tokens, from, load.filled * kPageTokens);
  return load.arrival;
}

bool DiskTier::fetches(RequestId id) const {
  return std::any_of(loads_.begin(), loads_.end(), [&](const auto& l) { return l.second.arrival.id == id; });
}

// A page that is not to be had ends what comes: all before it is of use.
void DiskTier::load_some() {
  for (auto& [number, load] : loads_) {
    for (; load.asked < load.end; ++load.asked) {
      if (free_.empty()) return;
      const std::uint64_t tag = number * kPagesOfLoad + load.asked;
      const auto begun = store_.load(load.keys[load.asked], tag);
      if (begun == PageStore::Begun::kBusy) return;
      if (begun == PageStore::Begun::kNot) {
        load.end = load.asked;
        break;
      }
      ++load.in_flight;
      load.coming[load.asked] = {.place = free_.back()};
      free_.pop_back();
      tell(RankCall::kDiskLoad, [tag, &key = load.keys[load.asked]](ByteWriter& out) {
        out.put(tag);
        write_page_key(key, out);
      });
    }
  }
}

void DiskTier::take(std::uint64_t tag, std::span<const std::byte> bytes) {
  Load& load = loads_.at(tag / kPagesOfLoad);
  const auto page = static_cast<std::int32_t>(tag % kPagesOfLoad);
  Load::Coming& coming = load.coming.at(page);
  coming.read = !bytes.empty();
  if (coming.read) std::ranges::copy(bytes, arriving_.page(coming.place).begin());
  if (!coming.read) load.end = std::min(load.end, page);
  --load.in_flight;
}

// Places of the pages that are to be added next, and are here. Ranks agree about each page.
std::vector<std::int32_t> DiskTier::next_pages(const Load& load) const {
  std::vector<std::int32_t> places;
  const std::int32_t end = link_ != nullptr ? std::min(load.end, load.filled + 1) : load.end;
  for (auto at = load.coming.find(load.filled); at != load.coming.end(); ++at) {
    if (at->first >= end || !at->second.read || at->first != load.filled + size32(places)) break;
    places.push_back(at->second.place);
  }
  return places;
}

// Adds pages on every rank, by one copy. False: one does not have it, which is forgotten then, or there is no room.
bool DiskTier::add_pages(std::uint64_t number, const Load& load, std::span<const std::int32_t> places) {
  const std::uint64_t tag = number * kPagesOfLoad + load.filled;
  tell(RankCall::kDiskFill, [&](ByteWriter& out) {
    out.put(load.arrival.id.value);
    out.put(tag);
  });
  if (link_ != nullptr && link_->least(1) == 0) {
    store_.drop(load.keys[load.filled]);
    return false;
  }
  return model_.engine->fill_kept(load.arrival.id, size32(places) * kPageTokens,
                                  [&](SequenceCache& cache) { arriving_.put(cache, load.filled, places); });
}

void DiskTier::fill(std::uint64_t number, Load& load, FunctionRef<void(std::int64_t)> make_room) {
  std::vector<std::int32_t> added;
  while (load.filled < load.end) {
    // Under pressure the engine takes pages from kept sequences, this one as well.
    if (model_.engine->cache(load.arrival.id).length() != load.filled * kPageTokens) load.end = load.filled;
    const std::vector<std::int32_t> places = next_pages(load);
    if (places.empty()) break;
    make_room(model_.engine->cache(load.arrival.id).blocks_needed(size32(places) * kPageTokens));
    std::size_t n = places.size();
    while (n > 0 && !add_pages(number, load, std::span(places).first(n))) n /= 2;
    if (n == 0) load.end = load.filled;
    for (const std::int32_t place : std::span(places).first(n)) {
      load.coming.erase(load.filled++);
      added.push_back(place);
    }
  }
  if (added.empty()) return;
  model_.engine->pool().wait();
  free_.insert(free_.end(), added.begin(), added.end());
}

void DiskTier::poll(bool wait) {
  store_.poll(wait, [&](std::uint64_t tag, std::span<const std::byte> bytes) { take(tag, bytes); });
}

void DiskTier::work(bool wait, FunctionRef<void(std::int64_t)> make_room) {
  load_some();
  write_some();
  poll(wait);
  for (auto it = loads_.begin(); it != loads_.end();) {
    Load& load = it->second;
    fill(it->first, load, make_room);
    if (load.filled < load.end || load.in_flight > 0) {
      ++it;
      continue;
    }
    tell(RankCall::kDiskDrop, [&](ByteWriter& out) { out.put(it->first); });
    for (const auto& [page, coming] : load.coming) free_.push_back(coming.place);
    load.arrival.done = true;
    arrived_.push_back(std::move(load.arrival));
    it = loads_.erase(it);
  }
}

std::vector<DiskTier::Arrival> DiskTier::take_arrived() {
  return std::exchange(arrived_, {});
}

}  // namespace mneme
