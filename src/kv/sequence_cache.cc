#include "src/kv/sequence_cache.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "src/base/check.h"
#include "src/base/size32.h"

namespace mneme {

SequenceCache::SequenceCache(SequenceCache&& other) noexcept
    : pool_(other.pool_),
      states_(std::move(other.states_)),
      length_(std::exchange(other.length_, 0)),
      n_pages_(std::exchange(other.n_pages_, 0)),
      key_basis_(other.key_basis_),
      revision_(std::exchange(other.revision_, new_revision())),
      released_(std::exchange(other.released_, 0)),
      released_content_(std::exchange(other.released_content_, {})),
      tables_(std::exchange(other.tables_, {})),
      kept_(std::exchange(other.kept_, {})),
      n_kept_(std::exchange(other.n_kept_, {})) {}

SequenceCache& SequenceCache::operator=(SequenceCache&& other) noexcept {
  if (this == &other) return *this;
  clear();
  pool_ = other.pool_;
  states_ = std::move(other.states_);
  length_ = std::exchange(other.length_, 0);
  n_pages_ = std::exchange(other.n_pages_, 0);
  key_basis_ = other.key_basis_;
  revision_ = std::exchange(other.revision_, new_revision());
  released_ = std::exchange(other.released_, 0);
  released_content_ = std::exchange(other.released_content_, {});
  tables_ = std::exchange(other.tables_, {});
  kept_ = std::exchange(other.kept_, {});
  n_kept_ = std::exchange(other.n_kept_, {});
  return *this;
}

std::uint64_t SequenceCache::new_revision() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

SequenceCache SequenceCache::fork() const {
  SequenceCache copy(*pool_);
  copy.states_ = states_.fork();
  copy.length_ = length_;
  copy.n_pages_ = n_pages_;
  copy.key_basis_ = key_basis_;
  copy.released_ = released_;
  copy.released_content_ = released_content_;
  copy.tables_ = tables_;
  copy.kept_ = kept_;
  copy.n_kept_ = n_kept_;
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    for (BlockId id : std::span(tables_[t]).subspan(first_page_of(t))) pool_->retain(id);
  }
  return copy;
}

void SequenceCache::set_key_basis(KeyBasis basis) {
  MNEME_CHECK(length_ == 0 || basis == key_basis_, "{} tokens are stored with keys of the other kind", length_);
  key_basis_ = basis;
}

std::int64_t SequenceCache::n_blocks() const {
  std::int64_t n = states_.n_blocks();
  for (std::size_t t = 0; t < tables_.size(); ++t) n += std::ssize(tables_[t]) - first_page_of(t);
  return n;
}

std::int32_t SequenceCache::n_slots(std::size_t table) const {
  const KeptRuns* kept_runs = kept(table);
  return kept_runs == nullptr ? length_ : kept_runs->back().slot + kept_runs->back().n;
}

std::int64_t SequenceCache::blocks_needed(std::int32_t n_new) const {
  MNEME_CHECK(n_new >= 0, "{} new tokens", n_new);
  if (n_new == 0) return 0;
  std::int64_t n = states_.blocks_needed();
  if (tables_.empty()) return n + pages_of(n_new) * shape().blocks_per_page();
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const std::int32_t slots = n_slots(t);
    n += pages_of(std::int64_t{slots} + n_new) - std::ssize(tables_[t]);
    if (slots % kPageTokens != 0 && pool_->references(tables_[t].back()) > 1) ++n;
  }
  return n;
}

void SequenceCache::extend(std::int32_t n_new) {
  MNEME_CHECK(n_new >= 0 && n_new <= std::numeric_limits<std::int32_t>::max() - kPageTokens - length_,
              "{} new tokens after {}", n_new, length_);
  if (n_new == 0) return;
  const std::int64_t needed = blocks_needed(n_new);
  MNEME_CHECK(needed <= pool_->n_free(), "{} blocks needed, {} free", needed, pool_->n_free());
  states_.make_writable();
  if (tables_.empty()) tables_.resize(shape().blocks_per_page());

  for (std::size_t t = 0; t < tables_.size(); ++t) {
    auto& table = tables_[t];
    const std::int32_t slots = n_slots(t), n_pages = pages_of(std::int64_t{slots} + n_new);
    if (slots % kPageTokens != 0 && pool_->references(table.back()) > 1) {
      const BlockId own = pool_->allocate();
      for (const BlockId id : {own, table.back()}) pool_->touch(id);
      pool_->copy(pool_->data(own), pool_->data(table.back()), (slots % kPageTokens) * shape().token_bytes());
      pool_->release(table.back());
      table.back() = own;
      revision_ = new_revision();
    } else if (slots % kPageTokens != 0 && pool_->windows().has(static_cast<std::int32_t>(t / shape().n_kv_heads))) {
      pool_->change_content(table.back());  // full once, where a sequence was cut
    }
    // Head by head, so that a chunk's pages of one head are contiguous in a fresh pool.
    while (size32(table) < n_pages) table.push_back(pool_->allocate());
    if (kept(t) == nullptr) continue;
    n_kept_[t] += n_new;
    KeptRun& last = kept_[t].back();
    if (last.position + last.n == length_) {
      last.n += n_new;
    } else {
      kept_[t].push_back({length_, slots, n_new});
    }
  }
  length_ += n_new;
  n_pages_ = pages_of(length_);
}

void SequenceCache::cut(std::size_t table, std::int32_t new_length) {
  KeptRuns& s = kept_[table];
  while (!s.empty() && s.back().position >= new_length) s.pop_back();
  if (s.empty()) s.push_back({new_length, 0, 0});
  s.back().n = std::min(s.back().n, new_length - s.back().position);
  n_kept_[table] = 0;
  for (const KeptRun& left : s) n_kept_[table] += left.n;
}

// A head whose remaining tokens were never dropped needs no kept runs any more.
void SequenceCache::forget_whole_heads() {
  bool any = false;
  for (KeptRuns& s : kept_) {
    if (s.size() == 1 && s[0].n == length_ && s[0].slot == 0) s.clear();
    any = any || !s.empty();
  }
  if (!any) kept_.clear();
}

void SequenceCache::truncate(std::int32_t new_length) {
  MNEME_CHECK(new_length >= 0 && new_length <= length_, "to {} of {} tokens", new_length, length_);
  if (pages_of(new_length) < n_pages_ || !kept_.empty()) revision_ = new_revision();
  states_.cut(new_length);
  take_back(new_length);
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    if (kept(t) != nullptr) cut(t, new_length);
    const std::int32_t n_pages = pages_of(kept(t) != nullptr ? n_slots(t) : new_length);
    auto& table = tables_[t];
    while (size32(table) > n_pages) {
      pool_->release(table.back());
      table.pop_back();
    }
  }
  n_pages_ = pages_of(new_length);
  length_ = new_length;
  forget_whole_heads();
}

std::size_t SequenceCache::table_index(std::int32_t layer, std::int32_t kv_head) const {
  MNEME_CHECK(layer >= 0 && layer < shape().n_layers && kv_head >= 0 && kv_head < shape().n_kv_heads,
              "layer {} of {}, KV head {} of {}", layer, shape().n_layers, kv_head, shape().n_kv_heads);
  return std::int64_t{layer} * shape().n_kv_heads + kv_head;
}

std::byte* SequenceCache::slot(std::size_t table, std::int32_t slot) const {
  const BlockId id = tables_[table][slot / kPageTokens];
  pool_->touch(id);
  return pool_->data(id) + (slot % kPageTokens) * shape().token_bytes();
}

std::byte* SequenceCache::token(std::int32_t layer, std::int32_t kv_head, std::int32_t position) const {
  MNEME_CHECK(position >= 0 && position < length_, "position {} of {}", position, length_);
  const std::size_t t = table_index(layer, kv_head);
  const KeptRuns* kept_runs = kept(t);
  MNEME_CHECK(position >= first_page_of(t) * kPageTokens, "position {} is behind the window", position);
  if (kept_runs == nullptr) return slot(t, position);
  // Search from the end: most lookups are for recent tokens.
  auto at = kept_runs->end();
  do --at;
  while (at != kept_runs->begin() && at->position > position);
  MNEME_CHECK(at->position <= position && position < at->position + at->n, "position {} was dropped", position);
  return slot(t, at->slot + position - at->position);
}

std::span<const BlockId> SequenceCache::table(std::int32_t layer, std::int32_t kv_head) const {
  const std::size_t i = table_index(layer, kv_head);
  return tables_.empty() ? std::span<const BlockId>() : std::span<const BlockId>(tables_[i]);
}

void SequenceCache::append_places(std::int32_t page, std::int32_t first_place, std::vector<BlockPlace>& places) const {
  MNEME_CHECK(!dropped() && released_ <= page && page < n_pages_, "page {} of {} to {}", page, released_, n_pages_);
  for (const auto& table : tables_) places.push_back({.block = table[page].value, .place = first_place++});
}

// Appends table indices [first, first + n); extends the last run where it is contiguous within its page.
void SequenceCache::append_slots(std::size_t table, std::int32_t first, std::int32_t n, std::size_t first_run,
                                 std::vector<KvRun>& runs) const {
  const std::size_t bytes = shape().token_bytes();
  for (const std::int32_t end = first + n; first < end;) {
    const std::int32_t in_page = first % kPageTokens, take = std::min(kPageTokens - in_page, end - first);
    const std::byte* kv = slot(table, first);
    if (in_page != 0 && runs.size() > first_run && runs.back().kv + runs.back().n_tokens * bytes == kv) {
      runs.back().n_tokens += take;
    } else {
      runs.push_back({kv, take});
    }
    first += take;
  }
}

std::int32_t SequenceCache::append_units(std::int32_t layer, std::int32_t kv_head, std::span<const std::int32_t> units,
                                         std::int32_t unit_tokens, std::vector<KvRun>& runs) const {
  if (units.empty()) return 0;
  MNEME_CHECK(0 <= units.front() && (units.back() + 1) * unit_tokens <= length_, "units {} to {} of {} tokens, of {}",
              units.front(), units.back(), unit_tokens, length_);
  const std::size_t t = table_index(layer, kv_head), first_run = runs.size();
  const bool whole = kept(t) == nullptr;
  // Thousands of scattered tokens: whether two are contiguous is a mispredicted branch. Where most tokens of a range
  // are selected, runs are long and attention is faster over them.
  if (whole && unit_tokens == 1 && units.back() - units.front() > 2 * std::ssize(units)) {
    runs.resize(first_run + units.size());
    KvRun* to = runs.data() + first_run;
    for (const std::int32_t token : units) *to++ = {slot(t, token), 1};
    return size32(units);
  }
  std::int32_t n = 0;
  for (std::size_t i = 0, j; i < units.size(); i = j) {
    for (j = i + 1; j < units.size() && units[j] == units[j - 1] + 1;) ++j;
    const std::int32_t begin = units[i] * unit_tokens, end = (units[j - 1] + 1) * unit_tokens;
    if (whole)
      append_slots(t, begin, end - begin, first_run, runs);
    else
      n += append_runs(layer, kv_head, begin, end, runs);
  }
  return whole ? size32(units) * unit_tokens : n;
}

std::int32_t SequenceCache::append_runs(std::int32_t layer, std::int32_t kv_head, std::int32_t begin, std::int32_t end,
                                        std::vector<KvRun>& runs) const {
  MNEME_CHECK(0 <= begin && begin <= end && end <= length_, "positions [{}, {}) of {}", begin, end, length_);
  const std::size_t t = table_index(layer, kv_head), first_run = runs.size();
  const KeptRuns* kept_runs = kept(t);
  if (kept_runs == nullptr) {
    const std::int32_t from = std::max(begin, std::min(end, first_page_of(t) * kPageTokens));
    append_slots(t, from, end - from, first_run, runs);
    return end - from;
  }
  std::int32_t n = 0;
  auto s = std::upper_bound(kept_runs->begin(), kept_runs->end(), begin,
                            [](std::int32_t position, const KeptRun& x) { return position < x.position + x.n; });
  for (; s != kept_runs->end() && s->position < end; ++s) {
    const std::int32_t from = std::max(begin, s->position), to = std::min(end, s->position + s->n);
    append_slots(t, s->slot + from - s->position, to - from, first_run, runs);
    n += to - from;
  }
  return n;
}

}  // namespace mneme
