// Drafts of a known quality.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "src/base/rng.h"
#include "src/base/size32.h"
#include "src/engine/engine.h"
#include "src/engine/speculation/drafter.h"

namespace mneme {

class TestDrafter final : public Drafter {
 public:
  struct Options {
    std::int32_t k = 7;
    double truth = 1;                 // probability that a draft is the answer's token
    std::int32_t vocab = 40;          // others are below it
    double outside = 0;               // probability that a wrong one is no token at all
    std::int32_t right_up_to = 1000;  // drafts of a step from this one on are wrong
  };
  struct Counts {
    int calls = 0, drafted = 0, accepted = 0;
  };

  // answer: tokens that follow the first n_before, the end token included.
  TestDrafter(std::size_t n_before, std::vector<std::int32_t> answer, Options options, std::uint64_t seed = 1)
      : n_before_(n_before), answer_(std::move(answer)), options_(options), rng_(seed) {}

  void draft(std::span<const std::int32_t> tokens, std::int32_t most, std::vector<std::int32_t>& drafts) override {
    ++counts.calls;
    const std::size_t at = tokens.size() - n_before_;
    for (std::int32_t i = 0; i < std::min(most, options_.k); ++i) {
      const std::int32_t truth = at + i < answer_.size() ? answer_[at + i] : 0;
      const bool right = i < options_.right_up_to && rng_.uniform() < options_.truth;
      if (right) {
        drafts.push_back(truth);
      } else if (rng_.uniform() < options_.outside) {
        drafts.push_back(rng_.below(2) == 0 ? -1 : options_.vocab);
      } else {
        drafts.push_back((truth + 1 + static_cast<std::int32_t>(rng_.below(options_.vocab - 1))) % options_.vocab);
      }
    }
  }
  void verified(std::int32_t drafted, std::int32_t accepted) override {
    counts.drafted += drafted;
    counts.accepted += accepted;
  }

  Counts counts;

 private:
  std::size_t n_before_;
  std::vector<std::int32_t> answer_;
  Options options_;
  Rng rng_;
};

}  // namespace mneme
