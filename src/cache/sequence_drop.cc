// Tokens that are dropped for good, head by head.
#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/cache/sequence_cache.h"

namespace mneme {

std::int32_t SequenceCache::dropped_before() const {
  std::int32_t from = 0;
  for (const Stretches& s : kept_) {
    if (s.empty()) continue;
    const Stretch& last = s.back();
    from = std::max(from, last.position + last.n == length_ ? last.position : length_);
  }
  return from;
}

std::int32_t SequenceCache::n_stored(std::int32_t layer, std::int32_t kv_head) const {
  return rank_of(layer, kv_head, length_);
}

std::vector<TokenRange> SequenceCache::stored(std::int32_t layer, std::int32_t kv_head) const {
  const Stretches* stretches = kept(table_index(layer, kv_head));
  std::vector<TokenRange> ranges;
  if (stretches == nullptr) {
    if (length_ > 0) ranges.push_back({0, length_});
    return ranges;
  }
  for (const Stretch& s : *stretches) {
    if (s.n == 0) continue;
    if (!ranges.empty() && ranges.back().end == s.position) {
      ranges.back().end += s.n;
    } else {
      ranges.push_back({s.position, s.position + s.n});
    }
  }
  return ranges;
}

std::int32_t SequenceCache::rank_of(std::int32_t layer, std::int32_t kv_head, std::int32_t position) const {
  MNEME_CHECK(0 <= position && position <= length_, "position {} of {}", position, length_);
  const Stretches* stretches = kept(table_index(layer, kv_head));
  if (stretches == nullptr) return position;
  std::int32_t n = 0;
  for (const Stretch& s : *stretches) n += std::clamp(position - s.position, 0, s.n);
  return n;
}

bool SequenceCache::shares_last_page() const {
  return std::any_of(tables_.begin(), tables_.end(),
                     [&](const auto& table) { return !table.empty() && pool_->references(table.back()) > 1; });
}

void SequenceCache::keep(std::int32_t layer, std::int32_t kv_head, std::span<const TokenRange> ranks) {
  const std::size_t t = table_index(layer, kv_head);
  if (tables_.empty()) return;
  if (kept_.empty()) kept_.resize(tables_.size());
  if (kept_[t].empty()) kept_[t].push_back({0, 0, length_});
  Stretches left;
  auto s = kept_[t].cbegin();
  std::int32_t first = 0, end = 0;  // rank of the first token of *s; where the last range ended
  for (const TokenRange& r : ranks) {
    MNEME_CHECK(end <= r.begin && r.begin <= r.end, "ranks [{}, {}) after {}", r.begin, r.end, end);
    end = r.end;
    for (std::int32_t at = r.begin; at < r.end;) {
      while (s != kept_[t].cend() && at >= first + s->n) first += (s++)->n;
      MNEME_CHECK(s != kept_[t].cend(), "rank {} of {} tokens", at, first);
      const std::int32_t offset = at - first, n = std::min(r.end - at, s->n - offset);
      const Stretch piece{s->position + offset, s->slot + offset, n};
      if (!left.empty() && left.back().position + left.back().n == piece.position &&
          left.back().slot + left.back().n == piece.slot) {
        left.back().n += n;
      } else {
        left.push_back(piece);
      }
      at += n;
    }
  }
  if (left.empty()) left.push_back({length_, 0, 0});
  kept_[t] = std::move(left);
  revision_ = new_revision();
  release_empty_pages(t);
  compact(t);
  forget_whole_heads();
}

// Pages without a kept token leave the table; slots behind them move up with their pages.
void SequenceCache::release_empty_pages(std::size_t t) {
  auto& table = tables_[t];
  std::vector<BlockId> used;
  std::int32_t next = 0;  // page of the old table that has not been looked at
  for (Stretch& s : kept_[t]) {
    if (s.n == 0) continue;
    const std::int32_t first = s.slot / kPageTokens, last = (s.slot + s.n - 1) / kPageTokens;
    for (; next < first; ++next) pool_->release(table[static_cast<std::size_t>(next)]);
    for (; next <= last; ++next) used.push_back(table[static_cast<std::size_t>(next)]);
    s.slot -= (last + 1 - static_cast<std::int32_t>(used.size())) * kPageTokens;
  }
  for (; next < static_cast<std::int32_t>(table.size()); ++next) pool_->release(table[static_cast<std::size_t>(next)]);
  table = std::move(used);
}

// Moves tokens into the holes before them, in order, where that frees enough and writes into no shared page.
void SequenceCache::compact(std::size_t t) {
  auto& table = tables_[t];
  std::int32_t n = 0;
  for (const Stretch& s : kept_[t]) n += s.n;
  const std::int32_t wanted = (n + kPageTokens - 1) / kPageTokens,
                     freed = static_cast<std::int32_t>(table.size()) - wanted;
  if (freed == 0 || 4 * freed < wanted) return;
  if (std::any_of(table.begin(), table.begin() + wanted, [&](BlockId id) { return pool_->references(id) > 1; })) return;
  const std::size_t bytes = shape().token_bytes();
  Stretches moved;
  std::int32_t to = 0;
  for (const Stretch& s : kept_[t]) {
    for (std::int32_t done = 0; done < s.n && to != s.slot;) {  // by pieces within a page on both sides
      const std::int32_t from = s.slot + done, at = to + done;
      const std::int32_t take =
          std::min({s.n - done, kPageTokens - from % kPageTokens, kPageTokens - at % kPageTokens});
      std::memmove(slot(t, at), slot(t, from), static_cast<std::size_t>(take) * bytes);
      done += take;
    }
    moved.push_back({s.position, to, s.n});
    to += s.n;
  }
  kept_[t] = std::move(moved);
  for (std::int32_t page = wanted; page < static_cast<std::int32_t>(table.size()); ++page)
    pool_->release(table[static_cast<std::size_t>(page)]);
  table.resize(static_cast<std::size_t>(wanted));
}

}  // namespace mneme
