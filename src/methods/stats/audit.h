// How much of its true attention a selection head read in a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kernels/topk.h"

namespace mneme {

struct AuditedHead {
  double recall = 0;  // of as many tokens as were attended, the most attended ones: the share that was
  double mass = 0;    // the share of the attention that went to what was attended, mean over query heads
};

// Memory that a caller keeps between heads.
struct AuditScratch {
  std::vector<float> pooled;
  std::vector<std::int32_t> top;
  TopkScratch topk;
};

//   probabilities  [n_heads, n] of the query heads that the selection is for, over all stored tokens
//   attended       [n]: not 0 for tokens that were attended, n_attended of them
AuditedHead audit_head(std::span<const float> probabilities, std::int32_t n_heads,
                       std::span<const std::uint8_t> attended, std::int64_t n_attended, AuditScratch& scratch);

}  // namespace mneme
