// Enums of a recipe (recipe.h) that kernels read, too.
#pragma once

#include <cstdint>

namespace mneme {

// ---- score, pool

// What a softmax over units normalises over.
enum class Domain : std::uint8_t {
  kCandidates,  // the units that may be selected
  kAttention,   // and, with their exact scores, sinks and window: a unit's probability is its attention
};

// How the query heads of a group come to one decision.   Source  FreeKV's paper, for names.
enum class Pool : std::uint8_t {
  kNone,  // every query head selects for itself
  kMaxQ,
  kMeanQ,  // pool the queries
  kMaxQk,
  kMeanQk,  // pool the scores
  kMaxS,
  kMeanS,   // pool softmax(alpha * score)
  kConcat,  // one decision for all heads of the layer
};

// ---- schedule

// Which cosine of the heads a gate compares with tau.
enum class GatePool : std::uint8_t { kMean, kMax, kAny };  // kAny: the smallest

enum class GateReference : std::uint8_t {
  kPrevious,       // the query of the step before
  kLastRetrieval,  // the query that made the selection: slow drift counts too
};

// ---- selection

// Query heads whose pooled scores make one selection.
enum class SelectScope : std::uint8_t { kKvHead, kLayer };

}  // namespace mneme
