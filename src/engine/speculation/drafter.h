// Guesses of an answer's next tokens (drafts), which one forward pass verifies together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mneme {

// Of one answer. Whatever a drafter guesses, the answer is the same; only its time depends on it.
class Drafter {
 public:
  // Most drafts of a step: a rejected tail is at most what layers with a window keep behind it (KvWindows::kSlack).
  static constexpr std::int32_t kMost = 63;

  virtual ~Drafter() = default;

  // Appends at most `most` tokens that may follow `tokens`, the whole sequence so far, to `drafts`. Calls see sequences
  // that each begin with the one before.
  virtual void draft(std::span<const std::int32_t> tokens, std::int32_t most, std::vector<std::int32_t>& drafts) = 0;
  // Of the last call's tokens, `drafted` were verified, and the first `accepted` were what the model samples.
  virtual void verified(std::int32_t drafted, std::int32_t accepted) = 0;
};

}  // namespace mneme
