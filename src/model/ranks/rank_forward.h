// The forward pass of ranks that share a model, on the CPU (Forward) and on devices (CudaForward). Every rank has all
// rows; each computes its KV heads with their query heads, its columns of the feed-forward layer (or its experts) and
// its part of the vocabulary, over the pages, index and selection of its heads.
//
//   a layer   two sums over the ranks: behind attention and behind the feed-forward layer
//   the head  logits of each rank's part of the vocabulary, gathered to all
//
// With RankSplit::kLayers each rank has some whole layers instead: rows of the residual stream go from one to the next,
// and logits from the last one to all.
//
// Each step compares step_hash() first. On the CPU sums are added in the order of the ranks, so residuals and logits have
// the same bits on every rank.
#pragma once

#include <cstdint>

#include "src/model/model.h"
#include "src/parallel/collective.h"

namespace mneme {

// Of tokens, rows, phases and lengths: what all ranks must have in common in a step.
std::uint64_t step_hash(const ForwardInput& input);

// Whole experts of a mixture: one is computed by the rank that has it, and rows are summed over the ranks.
RankRange rank_experts(std::int64_t n, int rank, int size);

// Rows of the head that rank `rank` of `size` computes: parts of vocabulary_part() rows, but for what the last ones lack.
std::int64_t vocabulary_part(std::int64_t vocab, int size);
RankRange vocabulary_range(std::int64_t vocab, int rank, int size);

}  // namespace mneme
