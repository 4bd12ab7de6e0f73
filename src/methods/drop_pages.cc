// DropDecider for rank=stamp: pages of stored tokens, dropped by the last step that attended them enough.
#include <algorithm>
#include <numeric>

#include "src/base/size32.h"
#include "src/methods/drop_decider.h"
#include "src/selection/mass/page_stamps.h"

namespace mneme {
namespace {

// Positions of a head's tokens by rank, once `kept` ranks are left of them; empty: all.
class StoredPositions {
 public:
  StoredPositions(std::vector<TokenRange> stored, std::span<const TokenRange> kept) : stored_(std::move(stored)) {
    for (const TokenRange& r : stored_) n_stored_ += r.end - r.begin;
    for (const TokenRange& r : kept) kept_.push_back(r), n_ += r.end - r.begin;
    if (kept.empty()) n_ = n_stored_;
  }
  std::int32_t size() const { return n_; }
  std::int32_t at(std::int32_t rank) const { return in(stored_, kept_.empty() ? rank : in(kept_, rank)); }

 private:
  static std::int32_t in(std::span<const TokenRange> ranges, std::int32_t rank) {
    for (const TokenRange& r : ranges) {
      if (rank < r.end - r.begin) return r.begin + rank;
      rank -= r.end - r.begin;
    }
    return -1;
  }
  std::vector<TokenRange> stored_, kept_;
  std::int32_t n_stored_ = 0, n_ = 0;
};

// Tokens that pages of a head are made of begin behind its sinks.
struct HeadPages {
  std::int32_t first = 0;   // rank of the first page's first token
  std::int32_t recent = 0;  // last tokens, which stay
  std::int32_t page = 1;
};

// Drops pages until n tokens are at most n_keep. Returns the ranks that stay.
std::vector<TokenRange> drop_pages(std::vector<PageStamp>& pages, const HeadPages& head, std::int32_t n,
                                   std::int32_t n_keep) {
  std::vector<std::int32_t> there(pages.size());  // by page left: its number among all
  std::iota(there.begin(), there.end(), 0);
  std::vector<std::int32_t> gone;
  for (std::int32_t left = n; left > n_keep; left -= head.page) {
    const std::int32_t droppable = std::min(size32(pages), (left - head.recent - head.first) / head.page);
    if (droppable < 1) break;
    const std::int32_t oldest = oldest_page(pages, droppable);
    gone.push_back(there[oldest]);
    pages.erase(pages.begin() + oldest);
    there.erase(there.begin() + oldest);
  }
  std::sort(gone.begin(), gone.end());
  std::vector<TokenRange> kept;
  std::int32_t from = 0;
  for (const std::int32_t g : gone) {
    const std::int32_t begin = head.first + g * head.page;
    if (begin > from) kept.push_back({from, begin});
    from = begin + head.page;
  }
  if (from < n) kept.push_back({from, n});
  return kept;
}

}  // namespace

// At a prompt's end: a drop by mass, where it is over the budget, and new pages. At a decode step: stamps, the page that
// the step completed, and drops of pages.
void DropDecider::decide_by_stamps(std::int32_t layer, const DropQueries& rows, LayerMass& mass) {
  const Plan& plan = rows.method->plan();
  const Stamps& rule = plan.drop->stamps;
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, step = rows.cache->length(), n_keep = plan.drop->budget - 1,
                     rows_a_head = mass.by == LayerMass::By::kQueryHead ? plan.shape.group() : 1;
  std::vector<std::vector<TokenRange>>& kept = state.pending.kept;
  if (!rows.decodes && rows.cache->n_stored(layer, 0) > n_keep) keep_by_rank(layer, rows, mass, n_keep);
  const std::int32_t prompt_end = rows.decodes ? state.prompt_end : step;
  state.pending.stamps = state.stamps;
  state.pending.stamps.resize(n_kv);
  std::vector<std::vector<TokenRange>> dropped(n_kv);
  bool any = false;
  for (std::int32_t m = 0; m < n_kv; ++m) {
    std::vector<PageStamp>& pages = state.pending.stamps[m];
    if (!kept.empty()) pages.clear();
    const StoredPositions positions(rows.cache->stored(layer, m), kept.empty() ? std::span<const TokenRange>()
                                                                               : std::span<const TokenRange>(kept[m]));
    const HeadPages head{.first = rows.cache->rank_of(layer, m, std::min(plan.drop->sink, step)),
                         .recent = std::max(0, plan.drop->recent - 1),
                         .page = rule.page};
    if (rows.decodes) {
      std::vector<float> received(pages.size(), 0.0f);
      for (std::int32_t h = m * rows_a_head; h < (m + 1) * rows_a_head; ++h)
        for (std::int32_t p = 0; p < size32(pages); ++p)
          for (const float x : mass.row(h).subspan(head.first + p * rule.page, rule.page))
            received[p] += x / static_cast<float>(plan.shape.group());
      stamp_pages(pages, received, rule, step);
    }
    while (head.first + (size32(pages) + 1) * rule.page <= positions.size()) {
      const std::int32_t begin = head.first + size32(pages) * rule.page;
      const bool pinned = rule.pin_prompt && positions.at(begin) < prompt_end;
      pages.push_back({.step = pinned ? PageStamp::kPinned : step, .end = positions.at(begin + rule.page - 1)});
    }
    if (!rows.decodes) continue;
    dropped[m] = drop_pages(pages, head, positions.size(), n_keep);
    any = any || dropped[m].size() > 1 || (!dropped[m].empty() && dropped[m][0].begin > 0);
  }
  if (any) kept = std::move(dropped);
}

}  // namespace mneme
