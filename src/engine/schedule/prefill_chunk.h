// How many prompt tokens a step computes beside answers, so that it takes as long as an answer may wait for its next
// token. A pure function of what steps took: no clock.
#pragma once

#include <cstdint>

namespace mneme {

class PrefillChunk {
 public:
  // Steps never compute fewer beside answers, whatever they take: a prompt that is read always goes on.
  static constexpr std::int32_t kLeast = 32;

  // target_seconds: of a step that has rows of answers; 0: steps take as many tokens as fit (`most`).
  //
  // Requires  target_seconds >= 0, most >= 1.
  PrefillChunk(double target_seconds, std::int32_t most);

  // Prompt tokens of the next step, if it has rows of answers.
  std::int32_t tokens() const;
  // A step computed these rows in so much time. Steps of prompts alone change nothing.
  //
  // The chunk follows aim / seconds, at most halved and at most a quarter larger each time: a step takes a + b tokens
  // of time, so that the error shrinks by the factor 1 - b tokens / aim each time, and never overshoots. The aim is
  // the target, or kAlone times what steps of answers alone take, where that is more: a target that answers alone
  // miss would leave prompts kLeast tokens a step, 800 tokens/s at 40 ms.
  // Steps with fewer prompt tokens than the chunk tell only that it is too large.
  void observe(std::int32_t answer_rows, std::int32_t prompt_tokens, double seconds);

 private:
  static constexpr double kAlone = 1.5;  // prompts get at least a third of such a step
  double target_;
  double alone_ = 0;  // seconds of a step of answers alone, smoothed; 0: none seen
  std::int32_t most_;
  double chunk_;
};

}  // namespace mneme
