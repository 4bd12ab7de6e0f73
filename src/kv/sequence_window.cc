// Pages behind the window of layers that have one.
#include <algorithm>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/kv/sequence_cache.h"

namespace mneme {

std::int64_t SequenceCache::blocks_to_end(std::int32_t n_new, std::int32_t step_tokens) const {
  const std::int64_t all = blocks_needed(n_new);
  const KvWindows& windows = pool_->windows();
  if (n_new == 0 || windows.n_layers() == 0) return all;
  const std::int64_t n_tables = std::int64_t{windows.n_layers()} * shape().n_kv_heads;
  const std::int64_t most = windows.most_pages(std::min(step_tokens, n_new));
  std::int64_t pages = pages_of(std::int64_t{length_} + n_new) - n_pages_, own = 0;
  if (!tables_.empty()) {
    // All tables of these layers hold, share and release the same pages.
    const auto& table = tables_[std::int64_t{windows.first_layer()} * shape().n_kv_heads];
    if (length_ % kPageTokens != 0 && pool_->references(table.back()) > 1) ++pages;
    for (const BlockId id : std::span(table).subspan(released_)) own += pool_->references(id) == 1 ? 1 : 0;
  }
  // A page that it owns alone is free again when the window has passed.
  return all - n_tables * (pages - std::min(pages, std::max<std::int64_t>(0, most - own)));
}

void SequenceCache::release_first(std::int32_t n_pages, bool for_good) {
  const KvWindows& windows = pool_->windows();
  if (windows.n_layers() == 0 || n_pages <= released_) return;
  MNEME_CHECK(n_pages <= windows.first_page(length_), "{} pages of {} tokens: a window reads them", n_pages, length_);
  for (; released_ < n_pages; ++released_) {
    auto& content = released_content_.emplace_back();
    for (std::size_t t = 0; t < tables_.size(); ++t) {
      if (!windows.has(count32(t / shape().n_kv_heads))) continue;
      const BlockId id = tables_[t][released_];
      content.push_back(pool_->content(id));
      if (for_good) pool_->change_content(id);
      pool_->release_weakly(id);
    }
  }
}

bool SequenceCache::can_truncate(std::int32_t length) const {
  const KvWindows& windows = pool_->windows();
  if (states_.longest(length) != length) return false;
  if (released_ == 0 || length == 0) return true;
  const std::int32_t end = std::min(released_, pages_of(length));
  for (std::int32_t page = windows.first_page(length); page < end; ++page) {
    std::size_t at = 0;
    for (std::size_t t = 0; t < tables_.size(); ++t)
      if (windows.has(count32(t / shape().n_kv_heads)) &&
          pool_->content(tables_[t][page]) != released_content_[page][at++])
        return false;
  }
  return true;
}

std::int32_t SequenceCache::longest_cut(std::int32_t length) const {
  const std::int32_t at = states_.longest(length);
  return can_truncate(at) ? at : 0;
}

// What a sequence of new_length tokens attends in layers with a window, of the pages that were released.
void SequenceCache::take_back(std::int32_t new_length) {
  if (released_ == 0) return;
  MNEME_CHECK(can_truncate(new_length), "to {} of {} tokens: pages of a window are gone", new_length, length_);
  const KvWindows& windows = pool_->windows();
  const std::int32_t pages = pages_of(new_length);
  const std::int32_t first = new_length == 0 ? 0 : windows.first_page(new_length);
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    if (!windows.has(count32(t / shape().n_kv_heads))) continue;
    auto& table = tables_[t];
    for (std::int32_t page = first; page < std::min(released_, pages); ++page) pool_->take_back(table[page]);
    // Pages behind the new end are freed here: the sequence holds those from released_ on.
    while (size32(table) > pages) {
      if (size32(table) > released_) pool_->release(table.back());
      table.pop_back();
    }
  }
  released_ = std::min(released_, first);
  released_content_.resize(released_);
}

}  // namespace mneme
