#include "src/selection/cluster/partition.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {

const char* check_partition(const PartitionRules& rules) {
  if (rules.smallest < 1 || rules.largest < rules.smallest)
    return "segments have at least one token, and the largest is no smaller than the smallest";
  if (rules.recent < rules.largest) return "recent must hold a segment of the largest size";
  if (rules.block < 1) return "a block of clusters has at least one token";
  return nullptr;
}

void Partition::close(std::int32_t end, bool clusters) {
  ranges_.push_back({grouped_, end, clusters});
  grouped_ = end;
}

// Segments before the prompt, or before the last cut, leave the buffer while it is too long.
void Partition::move_out() {
  while (length_ - grouped_ > rules_.recent && !cuts_.empty()) {
    const std::int32_t end = cuts_.front();
    cuts_.pop_front();
    if (end > grouped_) close(end, rules_.cluster_segments);
  }
}

void Partition::add_prompt(std::int32_t length) {
  MNEME_CHECK(length >= length_, "a prompt to {} after {} tokens", length, length_);
  if (length == length_) return;
  if (prompt_from_ == kNone) {
    prompt_from_ = open();
    if (length_ - prompt_from_ >= rules_.smallest) {
      cuts_.push_back(length_);
      prompt_from_ = length_;
    }
  }
  length_ = length;
  move_out();
  while (grouped_ == prompt_from_ && length_ - rules_.recent - grouped_ >= rules_.block) {
    close(grouped_ + rules_.block, true);
    prompt_from_ = grouped_;
  }
}

void Partition::end_prompt() {
  if (prompt_from_ == kNone) return;
  if (grouped_ == prompt_from_ && length_ - rules_.recent > grouped_) close(length_ - rules_.recent, true);
  prompt_from_ = kNone;
  while (length_ - open() > rules_.largest) cuts_.push_back(open() + rules_.largest);
}

void Partition::add_output(bool boundary) {
  end_prompt();
  if (length_ - open() >= rules_.largest) cuts_.push_back(length_);
  ++length_;
  move_out();
  if (boundary) begin_segment();
}

void Partition::begin_segment() {
  if (length_ - 1 - open() >= rules_.smallest) cuts_.push_back(length_ - 1);
}

void Partition::begin_as_prompt(std::int32_t length) {
  MNEME_CHECK(length <= length_, "a prompt of {} tokens out of {}", length, length_);
  std::size_t n = 0;
  grouped_ = rules_.sink;
  const auto whole = [&](const UnitRange& r) {
    return r.clusters && r.begin == grouped_ && r.end - r.begin == rules_.block && r.end <= length - rules_.recent;
  };
  while (n < ranges_.size() && whole(ranges_[n])) grouped_ = ranges_[n++].end;
  ranges_.resize(n);
  cuts_.clear();
  length_ = length;
  prompt_from_ = length > 0 ? grouped_ : kNone;
}

void Partition::truncate(std::int32_t length) {
  if (length >= length_) return;
  length_ = length;
  if (length < grouped_) {
    while (!ranges_.empty() && ranges_.back().end > length) ranges_.pop_back();
    grouped_ = ranges_.empty() ? rules_.sink : ranges_.back().end;
    cuts_.clear();
    prompt_from_ = grouped_;
    return;
  }
  while (!cuts_.empty() && cuts_.back() >= length) cuts_.pop_back();
  if (prompt_from_ >= length) prompt_from_ = kNone;
}

}  // namespace mneme
