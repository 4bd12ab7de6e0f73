// What ranks of one model add to a step, on the device: rows that were summed over the ranks join the residual stream,
// and logits of parts of the vocabulary become rows. All pointers are device memory. Async: all enqueue.
#pragma once

#include <cstdint>

#include "src/ops/norm_rope/pointwise_cuda.h"

namespace mneme {

// residual [n, hidden] f32 += sum [n, hidden] f32. With x_next the next norm starts here, as in embed_cuda.
//
// Requires  hidden a multiple of 4; n <= kSkinnyRows with x_next.
void add_summed_rows_cuda(const float* sum, std::int32_t n, std::int32_t hidden, const EmbedOutput& out,
                          const CudaContext& context);

// logits [n, vocab] f32 from parts [ranks, n, part] f32: columns [r * part, (r + 1) * part) are those of rank r, as far
// as they are below vocab.
void join_vocabulary_cuda(const float* parts, std::int32_t n, std::int32_t part, std::int32_t vocab, float* logits,
                          const CudaContext& context);

}  // namespace mneme
