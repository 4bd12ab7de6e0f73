// The rows of one step, and the tokens that their logits give.
#pragma once

#include <cstdint>
#include <vector>

#include "src/engine/forward_pass.h"
#include "src/engine/request.h"

namespace mneme {

struct StepBatch {
  std::vector<Request*> requests;
  std::vector<SequenceRows> rows;  // of each
  std::vector<std::int32_t> tokens;
  // Of every row of logits: whose it is, and the position of the token that it predicts.
  struct Wanted {
    Request* request;
    std::int32_t predicted;
    bool known() const { return predicted < request->length(); }
  };
  std::vector<Wanted> wanted;

  ForwardInput input() const { return {.tokens = tokens, .sequences = rows}; }
  // Rows of a step that failed are forgotten.
  void undo() const;
  // What methods decided to drop is dropped.
  void commit() const;
};

// Of one row of logits.
struct Sample {
  Sampler::SampledToken sampled;
  std::vector<TokenLogprob> top;
};

// A forward pass, and for every wanted row its token: sampled, or the known one with its log-probability. Where all that
// is wanted is tokens by logits alone, the logits stay where they are.
std::vector<Sample> compute(const StepBatch& batch, ForwardPass& forward, ThreadPool& threads);

}  // namespace mneme
