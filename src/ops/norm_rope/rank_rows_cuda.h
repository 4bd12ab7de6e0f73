// What ranks of one model add to a step, on the device: rows that were summed over the ranks join the residual stream,
// and logits of parts of the vocabulary become rows. All pointers are device memory. Async: all enqueue.
#pragma once

#include <cstdint>

#include "src/ops/norm_rope/pointwise_cuda.h"
#include "src/parallel/peer_protocol.h"

namespace mneme {

// residual [n, hidden] f32 += sum [n, hidden] f32. With x_next the next norm starts here, as in embed_cuda.
//
// Requires  hidden a multiple of 4; n <= kSkinnyRows with x_next.
void add_summed_rows_cuda(const float* sum, std::int32_t n, std::int32_t hidden, const EmbedOutput& out,
                          const CudaContext& context);

// The two above as one launch over memory that ranks write to each other (peer_protocol.h): residual [n, hidden] f32 += the
// sum over the ranks, in their order, of each one's rows [n, hidden] f32.
//
//   out.sums   [n, peer_row_parts(hidden)], as DeferredNorm::sums, where there is out.x_next
//
// Requires  2, 4 or 8 ranks; hidden a multiple of 4; n * peer_row_parts(hidden) tiles. All ranks make the same calls.
// Async     waits on the device for the others, until peers.stop. Kernels behind it may request what does not depend on it.
void add_peer_rows_cuda(const PeerBuffers& peers, int ranks, const float* rows, std::int32_t n, std::int32_t hidden,
                        const EmbedOutput& out, const CudaContext& context);
std::int32_t peer_row_parts(std::int32_t hidden);

// out [n] f32 = the sum over the ranks, in their order, of each one's `mine` [n] f32; they may be the same.
//
// Requires  as above; n a multiple of 4, at most that of all tiles.
void sum_over_peers_cuda(const PeerBuffers& peers, int ranks, const float* mine, float* out, std::int64_t n,
                         const CudaContext& context);

// residual [n] f32 += the sum of the first n elements of both ranks (peers.of), in their order; without a residual out [n] is
// the sum. For many rows: each reads the other's memory at the speed of the link.
//
// Requires  two ranks; n a multiple of 4, of which both have as many. Both make the same calls.
// Async     as above.
void read_peer_rows_cuda(const PeerExchange& peers, float* residual, float* out, std::int64_t n,
                         const CudaContext& context);

// logits [n, vocab] f32 from parts [ranks, n, part] f32: columns [r * part, (r + 1) * part) are those of rank r, as far
// as they are below vocab.
void join_vocabulary_cuda(const float* parts, std::int32_t n, std::int32_t part, std::int32_t vocab, float* logits,
                          const CudaContext& context);

}  // namespace mneme
