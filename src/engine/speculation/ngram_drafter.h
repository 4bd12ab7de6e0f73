// Drafts from the sequence itself: what followed the longest earlier occurrence of its last tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mneme/options.h"
#include "src/engine/speculation/drafter.h"
#include "src/engine/speculation/suffix_index.h"

namespace mneme {

// How many drafts pay: one more as long as it is accepted with a probability of kWorth, by what was accepted so far.
class DraftLength {
 public:
  // What a verified row costs at most, of a step of one row: assumed, not measured.
  static constexpr double kWorth = 0.3;
  static constexpr std::int32_t kPause = 64;  // tokens without drafts where not even the first one is worth it

  // Drafts for a sequence of so many tokens; 0: none now.
  std::int32_t at(std::int32_t n_tokens) const;
  void verified(std::int32_t n_tokens, std::int32_t drafted, std::int32_t accepted);

 private:
  static constexpr double kPrior = 0.7, kAfterPause = 0.34, kRate = 1.0 / 8;
  double acceptance_ = kPrior;  // of one draft, if those before it were accepted
  std::int32_t resume_at_ = 0;
};

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(const SpeculationOptions& options);

  // No more drafts than tokens that agree: a short match is often chance.
  void draft(std::span<const std::int32_t> tokens, std::int32_t most, std::vector<std::int32_t>& drafts) override;
  void verified(std::int32_t drafted, std::int32_t accepted) override;

 private:
  std::int32_t most_;
  SuffixIndex index_;
  DraftLength length_;
  std::int32_t n_tokens_ = 0;  // of the last call
};

}  // namespace mneme
