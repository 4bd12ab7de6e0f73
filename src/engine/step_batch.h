// The rows of one step, and the tokens that their logits give.
#pragma once

#include <cstdint>
#include <span>
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
    bool after_draft() const { return predicted > request->length(); }
  };
  std::vector<Wanted> wanted;

  ForwardInput input() const { return {.tokens = tokens, .sequences = rows}; }
  // Rows of a step that failed are forgotten.
  void undo() const;
  // What methods decided to drop is dropped, and so are the tokens of drafts that were not accepted.
  void commit(std::span<const Sample> samples) const;
};

// A forward pass, and for every wanted row its token: sampled, or the known one with its log-probability. Rows of drafts
// are sampled in order, the i-th token of an answer with its i-th random number; those behind a draft that is not what
// was sampled stay as they are. Where all that is wanted is tokens by logits alone, the logits stay where they are.
std::vector<Sample> compute(const StepBatch& batch, ForwardPass& forward, ThreadPool& threads);

}  // namespace mneme
