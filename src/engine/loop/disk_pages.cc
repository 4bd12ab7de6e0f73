#include "src/engine/loop/disk_pages.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <random>
#include <utility>

#include "src/base/size32.h"
#include "src/engine/loop/prefix_cache.h"
#include "src/engine/ranks/rank_link.h"

namespace mneme {
namespace {

constexpr std::uint64_t kPageFormat = 1;  // layer after layer, KV head after KV head: their blocks

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
  if (const RankLink* link = model.engine->ranks(); link != nullptr)
    for (const int v : {link->ranks().rank(), link->ranks().size()}) out.put(v);
  return XXH3_64bits(out.get().data(), out.get().size());
}

}  // namespace

PageStore::Options store_options(const RunningModel& model, const DiskOptions& options) {
  return {.folder = options.folder,
          .bytes = options.bytes,
          .identity = identity_of(model),
          .io = options.io,
          .wrap = options.wrap};
}

PageStaging::PageStaging(const PagePool& pool, std::int32_t n_pages)
    : pool_(pool),
      page_bytes_(pool.shape().whole_page_bytes()),
      n_pages_(n_pages),
      memory_(pool.host_memory(n_pages * page_bytes_)) {}

void PageStaging::take(const SequenceCache& cache, std::int32_t first_page, std::int32_t n) {
  const auto blocks = count32(pool_.shape().blocks_per_page());
  places_.clear();
  for (std::int32_t i = 0; i < n; ++i) cache.append_places(first_page + i, i * blocks, places_);
  pool_.copy_blocks(memory_, places_, BlocksGo::kOut);
  pool_.wait();
}

void PageStaging::put(SequenceCache& cache, std::int32_t first_page, std::span<const std::int32_t> pages) {
  const auto blocks = count32(pool_.shape().blocks_per_page());
  places_.clear();
  for (std::size_t i = 0; i < pages.size(); ++i)
    cache.append_places(first_page + count32(i), pages[i] * blocks, places_);
  pool_.copy_blocks(memory_, places_, BlocksGo::kIn);
}

std::int32_t pages_to_share(const PagePool& pool, RequestId from, std::int32_t n_shared) {
  return from.valid() && pool.windows().n_layers() == 0 ? n_shared / kPageTokens : 0;
}

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

// No client's salt, and no other process's, whose pages may be on the disk.
std::vector<PageKey> parked_keys(std::span<const TokenId> tokens, RequestId id) {
  static const std::uint64_t process = std::random_device()() | std::uint64_t{std::random_device()()} << 32;
  std::vector<TokenId> whole(tokens.begin(), tokens.end());
  whole.resize(std::size_t{kPageTokens} * pages_of(std::ssize(tokens)));
  return page_keys(whole, fmt::format("preempted {:x} {}", process, id.value));
}

void write_page_key(const PageKey& key, ByteWriter& out) {
  out.put(key.hash);
  out.put(key.parent);
  out.put(key.number);
  out.put(std::as_bytes(std::span(key.tokens)));
}

PageKey read_page_key(ByteReader& in) {
  PageKey key;
  key.hash = in.read<std::uint64_t>("a page");
  key.parent = in.read<std::uint64_t>("a page");
  key.number = in.read<std::int32_t>("a page");
  in.fill(std::span<std::int32_t>(key.tokens), "a page");
  return key;
}

}  // namespace mneme
