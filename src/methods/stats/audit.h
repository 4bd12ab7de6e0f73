// Audit: how much of its true attention a selection head read in a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/selection/topk/topk.h"

namespace mneme {

struct AuditedHead {
  double recall = 0;  // overlap of the attended tokens with as many tokens of the most attention
  double mass = 0;    // share of attention that the attended tokens have, averaged over query heads
};

// Working memory kept by a caller between heads.
struct AuditScratch {
  std::vector<float> pooled;
  std::vector<std::int32_t> top;
  TopkScratch topk;
};

//   probabilities  [n_heads, n] over all stored tokens, of the query heads that the selection serves
//   attended       [n]: nonzero for attended tokens, n_attended of them
AuditedHead audit_head(std::span<const float> probabilities, std::int32_t n_heads,
                       std::span<const std::uint8_t> attended, std::int64_t n_attended, AuditScratch& scratch);

}  // namespace mneme
