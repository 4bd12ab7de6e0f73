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
  // A step computed these rows in so much time. Steps of answers alone, or of prompts alone, change nothing.
  //
  // The chunk follows target / seconds, at most halved and at most a quarter larger each time: a step takes a + b
  // tokens of time, so that the error shrinks by the factor 1 - b tokens / target each time, and never overshoots.
  // Steps with fewer prompt tokens than the chunk tell only that it is too large.
  void observe(std::int32_t answer_rows, std::int32_t prompt_tokens, double seconds);

 private:
  double target_;
  std::int32_t most_;
  double chunk_;
};

}  // namespace mneme
