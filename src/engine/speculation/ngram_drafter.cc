#include "src/engine/speculation/ngram_drafter.h"

#include <algorithm>

#include "src/base/size32.h"

namespace mneme {

std::int32_t DraftLength::at(std::int32_t n_tokens) const {
  if (n_tokens < resume_at_) return 0;
  std::int32_t n = 0;
  for (double p = acceptance_; p >= kWorth && n < Drafter::kMost; p *= acceptance_) ++n;
  return n;
}

void DraftLength::verified(std::int32_t n_tokens, std::int32_t drafted, std::int32_t accepted) {
  for (std::int32_t i = 0; i < accepted; ++i) acceptance_ += (1 - acceptance_) * kRate;
  if (accepted < drafted) acceptance_ -= acceptance_ * kRate;
  if (acceptance_ >= kWorth) return;
  resume_at_ = n_tokens + kPause;
  acceptance_ = kAfterPause;  // one draft then, and a pause again if it is wrong
}

NgramDrafter::NgramDrafter(const SpeculationOptions& options) : most_(options.drafts), index_(options.min_match) {}

void NgramDrafter::draft(std::span<const std::int32_t> tokens, std::int32_t most, std::vector<std::int32_t>& drafts) {
  n_tokens_ = size32(tokens);
  index_.follow(tokens);
  const std::int32_t worth = length_.at(n_tokens_);
  if (worth == 0) return;
  const SuffixIndex::Match match = index_.longest(tokens);
  const std::int32_t n = std::min({most, most_, worth, match.length});
  const std::size_t first = drafts.size();
  for (std::int32_t i = 0; i < n; ++i) {
    const std::int32_t at = match.next + i;  // behind the end where the occurrence overlaps it: it repeats
    drafts.push_back(at < n_tokens_ ? tokens[at] : drafts[first + (at - n_tokens_)]);
  }
}

void NgramDrafter::verified(std::int32_t drafted, std::int32_t accepted) {
  length_.verified(n_tokens_, drafted, accepted);
}

}  // namespace mneme
