// Permanent drops of tokens, head by head.
#include <algorithm>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/kv/sequence_cache.h"

namespace mneme {

std::int32_t SequenceCache::n_stored(std::int32_t layer, std::int32_t kv_head) const {
  const std::size_t t = table_index(layer, kv_head);
  return kept(t) == nullptr ? length_ - first_page_of(t) * kPageTokens : n_kept_[t];
}

std::vector<TokenRange> SequenceCache::ranges_of(std::int32_t layer, std::int32_t kv_head,
                                                 std::int32_t KeptRun::*begin) const {
  const KeptRuns* kept_runs = kept(table_index(layer, kv_head));
  std::vector<TokenRange> ranges;
  if (kept_runs == nullptr) {
    if (length_ > 0) ranges.push_back({first_page(layer) * kPageTokens, length_});
    return ranges;
  }
  for (const KeptRun& s : *kept_runs) {
    if (s.n == 0) continue;
    if (!ranges.empty() && ranges.back().end == s.*begin) {
      ranges.back().end += s.n;
    } else {
      ranges.push_back({s.*begin, s.*begin + s.n});
    }
  }
  return ranges;
}

std::vector<TokenRange> SequenceCache::stored(std::int32_t layer, std::int32_t kv_head) const {
  return ranges_of(layer, kv_head, &KeptRun::position);
}

std::vector<TokenRange> SequenceCache::stored_slots(std::int32_t layer, std::int32_t kv_head) const {
  return ranges_of(layer, kv_head, &KeptRun::slot);
}

std::int32_t SequenceCache::rank_of(std::int32_t layer, std::int32_t kv_head, std::int32_t position) const {
  MNEME_CHECK(0 <= position && position <= length_, "position {} of {}", position, length_);
  const KeptRuns* kept_runs = kept(table_index(layer, kv_head));
  if (kept_runs == nullptr || position == 0) return std::max(0, position - first_page(layer) * kPageTokens);
  std::int32_t n = 0;
  for (const KeptRun& s : *kept_runs) n += std::clamp(position - s.position, 0, s.n);
  return n;
}

bool SequenceCache::shares_last_page() const {
  return std::any_of(tables_.begin(), tables_.end(),
                     [&](const auto& table) { return !table.empty() && pool_->references(table.back()) > 1; });
}

void SequenceCache::keep(std::int32_t layer, std::int32_t kv_head, std::span<const TokenRange> ranks) {
  const HeadRanks head{layer, kv_head, ranks};
  keep(std::span(&head, 1));
}

void SequenceCache::keep(std::span<const HeadRanks> heads) {
  if (tables_.empty() || heads.empty()) return;
  if (kept_.empty()) {
    kept_.resize(tables_.size());
    n_kept_.resize(tables_.size());
  }
  auto& [moves, ends] = pool_->move_lists();
  moves.clear();
  ends.clear();
  for (const HeadRanks& head : heads) {
    const std::size_t t = table_index(head.layer, head.kv_head), before = moves.size();
    MNEME_CHECK(first_page_of(t) == 0, "layer {} keeps a window", head.layer);
    keep_ranks(t, head.ranks);
    release_empty_pages(t);
    compact(t, moves);
    if (moves.size() > before) ends.push_back(size32(moves));
  }
  pool_->move(moves, ends);
  revision_ = new_revision();
  forget_whole_heads();
}

void SequenceCache::keep_ranks(std::size_t t, std::span<const TokenRange> ranks) {
  if (kept_[t].empty()) kept_[t].push_back({0, 0, length_});
  KeptRuns left;
  left.reserve(ranks.size());
  std::int32_t n_left = 0;
  auto s = kept_[t].cbegin();
  std::int32_t first = 0, end = 0;  // rank of the first token of *s; end of the previous range
  for (const TokenRange& r : ranks) {
    MNEME_CHECK(end <= r.begin && r.begin <= r.end, "ranks [{}, {}) after {}", r.begin, r.end, end);
    end = r.end;
    for (std::int32_t at = r.begin; at < r.end;) {
      while (s != kept_[t].cend() && at >= first + s->n) first += (s++)->n;
      MNEME_CHECK(s != kept_[t].cend(), "rank {} of {} tokens", at, first);
      const std::int32_t offset = at - first, n = std::min(r.end - at, s->n - offset);
      const KeptRun piece{s->position + offset, s->slot + offset, n};
      if (!left.empty() && left.back().position + left.back().n == piece.position &&
          left.back().slot + left.back().n == piece.slot) {
        left.back().n += n;
      } else {
        left.push_back(piece);
      }
      n_left += n;
      at += n;
    }
  }
  if (left.empty()) left.push_back({length_, 0, 0});
  kept_[t] = std::move(left);
  n_kept_[t] = n_left;
}

// Removes pages without a kept token from the table; later pages move up.
void SequenceCache::release_empty_pages(std::size_t t) {
  auto& table = tables_[t];
  std::vector<BlockId> used;
  std::int32_t next = 0;  // first page of the old table that was not examined yet
  for (KeptRun& s : kept_[t]) {
    if (s.n == 0) continue;
    const std::int32_t first = s.slot / kPageTokens, last = (s.slot + s.n - 1) / kPageTokens;
    for (; next < first; ++next) pool_->release(table[next]);
    for (; next <= last; ++next) used.push_back(table[next]);
    s.slot -= (last + 1 - size32(used)) * kPageTokens;
  }
  for (; next < size32(table); ++next) pool_->release(table[next]);
  table = std::move(used);
}

// Moves tokens into earlier holes, in order, where that frees enough pages and writes no shared page.
void SequenceCache::compact(std::size_t t, std::vector<TokenMove>& moves) {
  auto& table = tables_[t];
  std::int32_t n = 0;
  for (const KeptRun& s : kept_[t]) n += s.n;
  const std::int32_t wanted = pages_of(n), freed = size32(table) - wanted;
  if (freed == 0 || 4 * freed < wanted) return;
  if (std::any_of(table.begin(), table.begin() + wanted, [&](BlockId id) { return pool_->references(id) > 1; })) return;
  const auto number = [&](std::int32_t slot) {
    return std::int64_t{table[slot / kPageTokens].value} * kPageTokens + slot % kPageTokens;
  };
  for (const BlockId id : table) pool_->touch(id);
  KeptRuns moved;
  std::int32_t to = 0;
  for (const KeptRun& s : kept_[t]) {
    for (std::int32_t done = 0; done < s.n && to != s.slot;) {  // split at page boundaries of both sides
      const std::int32_t from = s.slot + done, at = to + done;
      const std::int32_t take =
          std::min({kMaxMoved, s.n - done, kPageTokens - from % kPageTokens, kPageTokens - at % kPageTokens});
      moves.push_back({number(at), number(from), take});
      done += take;
    }
    moved.push_back({s.position, to, s.n});
    to += s.n;
  }
  kept_[t] = std::move(moved);
  for (std::int32_t page = wanted; page < size32(table); ++page) pool_->release(table[page]);
  table.resize(wanted);
}

}  // namespace mneme
