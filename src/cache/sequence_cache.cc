#include "src/cache/sequence_cache.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "src/base/check.h"

namespace mneme {
namespace {

std::int32_t pages_for(std::int64_t n_tokens) {
  return static_cast<std::int32_t>((n_tokens + kPageTokens - 1) / kPageTokens);
}

}  // namespace

SequenceCache::SequenceCache(SequenceCache&& other) noexcept
    : pool_(other.pool_),
      length_(std::exchange(other.length_, 0)),
      n_pages_(std::exchange(other.n_pages_, 0)),
      key_basis_(other.key_basis_),
      revision_(std::exchange(other.revision_, new_revision())),
      tables_(std::exchange(other.tables_, {})) {}

SequenceCache& SequenceCache::operator=(SequenceCache&& other) noexcept {
  if (this == &other) return *this;
  clear();
  pool_ = other.pool_;
  length_ = std::exchange(other.length_, 0);
  n_pages_ = std::exchange(other.n_pages_, 0);
  key_basis_ = other.key_basis_;
  revision_ = std::exchange(other.revision_, new_revision());
  tables_ = std::exchange(other.tables_, {});
  return *this;
}

std::uint64_t SequenceCache::new_revision() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

SequenceCache SequenceCache::fork() const {
  SequenceCache copy(*pool_);
  copy.length_ = length_;
  copy.n_pages_ = n_pages_;
  copy.key_basis_ = key_basis_;
  copy.tables_ = tables_;
  for (const auto& table : tables_) {
    for (BlockId id : table) pool_->retain(id);
  }
  return copy;
}

void SequenceCache::set_key_basis(KeyBasis basis) {
  MNEME_CHECK(length_ == 0 || basis == key_basis_, "{} tokens are stored with keys of the other kind", length_);
  key_basis_ = basis;
}

std::int64_t SequenceCache::blocks_needed(std::int32_t n_new) const {
  MNEME_CHECK(n_new >= 0, "{} new tokens", n_new);
  if (n_new == 0) return 0;
  std::int64_t n = (pages_for(std::int64_t{length_} + n_new) - n_pages_) * shape().blocks_per_page();
  if (length_ % kPageTokens != 0) {
    n += std::count_if(tables_.begin(), tables_.end(),
                       [&](const auto& table) { return pool_->references(table.back()) > 1; });
  }
  return n;
}

void SequenceCache::extend(std::int32_t n_new) {
  MNEME_CHECK(n_new >= 0 && n_new <= std::numeric_limits<std::int32_t>::max() - kPageTokens - length_,
              "{} new tokens after {}", n_new, length_);
  if (n_new == 0) return;
  const std::int64_t needed = blocks_needed(n_new);
  MNEME_CHECK(needed <= pool_->n_free(), "{} blocks needed, {} free", needed, pool_->n_free());
  if (tables_.empty()) tables_.resize(static_cast<std::size_t>(shape().blocks_per_page()));

  const std::int32_t n_pages = pages_for(std::int64_t{length_} + n_new);
  const auto filled = static_cast<std::size_t>(length_ % kPageTokens) * shape().token_bytes();
  for (auto& table : tables_) {
    if (filled != 0 && pool_->references(table.back()) > 1) {
      const BlockId own = pool_->allocate();
      pool_->copy(pool_->data(own), pool_->data(table.back()), filled);
      pool_->release(table.back());
      table.back() = own;
      revision_ = new_revision();
    }
    // Head by head, so that a chunk's pages of one head are neighbours in a fresh pool.
    while (static_cast<std::int32_t>(table.size()) < n_pages) table.push_back(pool_->allocate());
  }
  n_pages_ = n_pages;
  length_ += n_new;
}

void SequenceCache::truncate(std::int32_t new_length) {
  MNEME_CHECK(new_length >= 0 && new_length <= length_, "to {} of {} tokens", new_length, length_);
  const std::int32_t n_pages = pages_for(new_length);
  if (n_pages < n_pages_) revision_ = new_revision();
  for (auto& table : tables_) {
    while (static_cast<std::int32_t>(table.size()) > n_pages) {
      pool_->release(table.back());
      table.pop_back();
    }
  }
  n_pages_ = n_pages;
  length_ = new_length;
}

std::size_t SequenceCache::table_index(std::int32_t layer, std::int32_t kv_head) const {
  MNEME_CHECK(layer >= 0 && layer < shape().n_layers && kv_head >= 0 && kv_head < shape().n_kv_heads,
              "layer {} of {}, KV head {} of {}", layer, shape().n_layers, kv_head, shape().n_kv_heads);
  return static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape().n_kv_heads) +
         static_cast<std::size_t>(kv_head);
}

std::byte* SequenceCache::token(std::int32_t layer, std::int32_t kv_head, std::int32_t position) const {
  MNEME_CHECK(position >= 0 && position < length_, "position {} of {}", position, length_);
  const BlockId id = tables_[table_index(layer, kv_head)][static_cast<std::size_t>(position / kPageTokens)];
  return pool_->data(id) + static_cast<std::size_t>(position % kPageTokens) * shape().token_bytes();
}

std::span<const BlockId> SequenceCache::table(std::int32_t layer, std::int32_t kv_head) const {
  const std::size_t i = table_index(layer, kv_head);
  return tables_.empty() ? std::span<const BlockId>() : std::span<const BlockId>(tables_[i]);
}

void SequenceCache::append_runs(std::int32_t layer, std::int32_t kv_head, std::int32_t begin, std::int32_t end,
                                std::vector<KvRun>& runs) const {
  MNEME_CHECK(0 <= begin && begin <= end && end <= length_, "positions [{}, {}) of {}", begin, end, length_);
  const std::span<const BlockId> blocks = table(layer, kv_head);
  for (std::int32_t at = begin; at < end;) {
    const std::int32_t page = at / kPageTokens, first = at % kPageTokens;
    const std::int32_t n = std::min(kPageTokens - first, end - at);
    const std::byte* kv = pool_->data(blocks[static_cast<std::size_t>(page)]);
    runs.push_back({kv + static_cast<std::size_t>(first) * shape().token_bytes(), n});
    at += n;
  }
}

}  // namespace mneme
