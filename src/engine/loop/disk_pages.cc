#include "src/engine/loop/disk_pages.h"

#include <xxhash.h>

#include <algorithm>
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

// Calls `block` with the address of each layer's and head's block of a page, in order. Where some of the pool lie in a
// file, those of a page are given back together.
void for_blocks(const SequenceCache& cache, std::int32_t page, FunctionRef<void(std::byte*)> block) {
  const KvShape& shape = cache.shape();
  for (std::int32_t l = 0; l < shape.n_layers; ++l)
    for (std::int32_t h = 0; h < shape.n_kv_heads; ++h) {
      const BlockId id = cache.table(l, h)[page];
      cache.pool().touch(id);
      block(cache.pool().data(id));
    }
  cache.pool().end_layer();
}

}  // namespace

std::size_t bytes_of_page(const KvShape& shape) {
  return shape.page_bytes() * shape.blocks_per_page();
}

PageStore::Options store_options(const RunningModel& model, const DiskOptions& options) {
  return {.folder = options.folder,
          .bytes = options.bytes,
          .identity = identity_of(model),
          .io = options.io,
          .wrap = options.wrap};
}

void copy_page_out(const SequenceCache& cache, std::int32_t page, std::span<std::byte> to) {
  std::byte* at = to.data();
  const std::size_t bytes = cache.shape().page_bytes();
  for_blocks(cache, page, [&](std::byte* block) { cache.pool().read(std::exchange(at, at + bytes), block, bytes); });
}

void copy_page_in(const SequenceCache& cache, std::int32_t page, std::span<const std::byte> from) {
  const std::byte* at = from.data();
  const std::size_t bytes = cache.shape().page_bytes();
  for_blocks(cache, page, [&](std::byte* block) { cache.pool().write(block, std::exchange(at, at + bytes), bytes); });
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
