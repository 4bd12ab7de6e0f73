#include "src/engine/loop/disk_tier.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "src/base/size32.h"
#include "src/engine/loop/prefix_cache.h"
#include "src/formats/bytes/byte_writer.h"

namespace mneme {
namespace {

constexpr std::uint64_t kPageFormat = 1;  // layer after layer, KV head after KV head: their blocks
constexpr std::uint64_t kPagesOfLoad = std::uint64_t{1} << 32;

// Pages are of use to the same weights, tokens and rounding alone.
std::uint64_t identity_of(const RunningModel& model) {
  const SessionIdentity& id = model.identity;
  ByteWriter out;
  out.put(std::string_view(id.architecture));
  for (const std::uint64_t v : {kPageFormat, id.weights, id.tokenizer, id.rope}) out.put(v);
  const KvShape& shape = model.engine->pool().shape();
  for (const std::int32_t v : {shape.n_layers, shape.n_kv_heads, shape.head_dim, kPageTokens}) out.put(v);
  out.put(dtype_name(shape.dtype));
  out.put(std::uint32_t{model.engine->options().deterministic});
  return XXH3_64bits(out.get().data(), out.get().size());
}

std::size_t bytes_of_page(const KvShape& shape) {
  return shape.page_bytes() * shape.blocks_per_page();
}

// Calls `block` with the address of each layer's and head's block of a page, in order.
void for_blocks(const SequenceCache& cache, std::int32_t page, FunctionRef<void(std::byte*)> block) {
  const KvShape& shape = cache.shape();
  for (std::int32_t l = 0; l < shape.n_layers; ++l)
    for (std::int32_t h = 0; h < shape.n_kv_heads; ++h) block(cache.pool().data(cache.table(l, h)[page]));
}

void copy_out(const SequenceCache& cache, std::int32_t page, std::span<std::byte> to) {
  std::byte* at = to.data();
  const std::size_t bytes = cache.shape().page_bytes();
  for_blocks(cache, page, [&](std::byte* block) { cache.pool().read(std::exchange(at, at + bytes), block, bytes); });
}

void copy_in(const SequenceCache& cache, std::int32_t page, std::span<const std::byte> from) {
  const std::byte* at = from.data();
  const std::size_t bytes = cache.shape().page_bytes();
  for_blocks(cache, page, [&](std::byte* block) { cache.pool().write(block, std::exchange(at, at + bytes), bytes); });
}

}  // namespace

std::vector<PageKey> page_keys(std::span<const TokenId> tokens, const std::string& salt) {
  const std::vector<std::uint64_t> chain = page_chain(tokens, salt);
  std::vector<PageKey> keys(chain.size());
  for (std::size_t i = 0; i < chain.size(); ++i) {
    keys[i].hash = chain[i];
    keys[i].parent = i > 0 ? chain[i - 1] : 0;
    keys[i].number = count32(i);
    std::copy_n(tokens.begin() + i * kPageTokens, kPageTokens, keys[i].tokens.begin());
  }
  return keys;
}

DiskTier::DiskTier(RunningModel& model, const DiskOptions& options)
    : model_(model),
      store_(bytes_of_page(model.engine->pool().shape()),
             {.folder = options.folder, .bytes = options.bytes, .identity = identity_of(model), .io = options.io}) {}

DiskTier::~DiskTier() {
  while (!writes_.empty()) write_now(writes_.front().id);
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

// False: no buffer is free.
bool DiskTier::write_page(Write& write) {
  const SequenceCache& cache = model_.engine->cache(write.id);
  if (cache.dropped() || write.next >= cache.length() / kPageTokens) {
    write.next = size32(write.keys);  // the sequence lost these pages before they were written
    return true;
  }
  const auto begun =
      store_.store(write.keys[write.next], [&](std::span<std::byte> to) { copy_out(cache, write.next, to); });
  if (begun == PageStore::Begun::kBusy) return false;
  ++write.next;
  return true;
}

void DiskTier::write_now(RequestId id) {
  const auto it = std::find_if(writes_.begin(), writes_.end(), [&](const Write& w) { return w.id == id; });
  if (it == writes_.end()) return;
  while (it->next < size32(it->keys))
    if (!write_page(*it)) poll(true);
  writes_.erase(it);
}

// As many as there are buffers for: that bounds what a step waits for copies.
void DiskTier::write_some() {
  while (!writes_.empty()) {
    Write& write = writes_.front();
    if (write.next == size32(write.keys)) {
      writes_.pop_front();
    } else if (!write_page(write)) {
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
  load.asked = load.filled = n_shared / kPageTokens;
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
      const auto begun = store_.load(load.keys[load.asked], number * kPagesOfLoad + load.asked);
      if (begun == PageStore::Begun::kBusy) return;
      if (begun == PageStore::Begun::kNot) {
        load.end = load.asked;
        break;
      }
      ++load.in_flight;
    }
  }
}

void DiskTier::take(std::uint64_t tag, std::span<const std::byte> bytes) {
  Load& load = loads_.at(tag / kPagesOfLoad);
  const auto page = static_cast<std::int32_t>(tag % kPagesOfLoad);
  if (bytes.empty()) {
    load.end = std::min(load.end, page);
  } else if (page < load.end) {
    load.here[page].assign(bytes.begin(), bytes.end());
  }
  --load.in_flight;
}

void DiskTier::fill(Load& load, FunctionRef<void(std::int64_t)> make_room) {
  while (load.filled < load.end) {
    // Under pressure the engine takes pages from kept sequences, this one as well.
    if (model_.engine->cache(load.arrival.id).length() != load.filled * kPageTokens) load.end = load.filled;
    const auto page = load.here.find(load.filled);
    if (load.filled == load.end || page == load.here.end()) return;
    make_room(model_.engine->cache(load.arrival.id).blocks_needed(kPageTokens));
    const bool room = model_.engine->fill_kept(
        load.arrival.id, kPageTokens, [&](SequenceCache& cache) { copy_in(cache, load.filled, page->second); });
    if (!room) {
      load.end = load.filled;
      break;
    }
    load.here.erase(page);
    ++load.filled;
  }
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
    fill(load, make_room);
    if (load.filled < load.end || load.in_flight > 0) {
      ++it;
      continue;
    }
    load.arrival.done = true;
    arrived_.push_back(std::move(load.arrival));
    it = loads_.erase(it);
  }
}

std::vector<DiskTier::Arrival> DiskTier::take_arrived() {
  return std::exchange(arrived_, {});
}

}  // namespace mneme
