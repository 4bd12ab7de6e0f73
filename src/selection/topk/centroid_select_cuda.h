// Pages by eight centroids of their keys, selected in one launch: what compute_head_terms_cuda(),
// score_summaries_cuda() and the ranker of the unfused selection do in three, with the same results up to rounding.
#pragma once

#include "src/cuda/context.h"

namespace mneme {

namespace cuda {
struct UnfusedArgs;
}

// False: the arguments have no fused form. It is for pages of 32, heads of 64 or 128, up to four query heads a KV head,
// contexts whose keys of a KV head fit in shared memory (56K pages), and code for clusters.
//
// Numerics  queries split into two bf16 values; f32 sums.   Ties, NaN  as topk.h.   Async  enqueues.
bool select_by_centroids_cuda(const cuda::UnfusedArgs& args, const CudaContext& context);

}  // namespace mneme
