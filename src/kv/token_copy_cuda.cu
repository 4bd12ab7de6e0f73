// One thread block per list. Each warp reads one move; after all have read, all write: what a move overwrites was read
// by itself or by an earlier move.
#include "src/cuda/common.cuh"
#include "src/kv/token_copy.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8;
constexpr int kMaxTokenBytes = 1024;                                 // head_dim 256
constexpr int kLoads = kMaxMoved * kMaxTokenBytes / 16 / kWarp + 1;  // words of 8 bytes in 8 bits, with scales

__device__ __forceinline__ uint4 load(const uint4* p) {
  return __ldcg(p);
}
__device__ __forceinline__ uint2 load(const uint2* p) {
  return __ldcg(p);
}

template <typename Word>
__global__ void __launch_bounds__(kWarps* kWarp)
    move_kernel(std::byte* base, int token_bytes, const TokenMove* moves, const std::int32_t* ends) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, list = blockIdx.x;
  const int begin = list == 0 ? 0 : ends[list - 1], end = ends[list];
  for (int first = begin; first < end; first += kWarps) {
    const TokenMove move = first + warp < end ? moves[first + warp] : TokenMove{};
    const int pieces = move.n * token_bytes / static_cast<int>(sizeof(Word));
    const auto* from = reinterpret_cast<const Word*>(base + move.from * token_bytes);
    auto* to = reinterpret_cast<Word*>(base + move.to * token_bytes);
    Word v[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (i * kWarp + lane < pieces) v[i] = load(from + i * kWarp + lane);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (i * kWarp + lane < pieces) __stcg(to + i * kWarp + lane, v[i]);
    __syncthreads();
  }
}

}  // namespace

void move_tokens_cuda(std::byte* base, std::int32_t token_bytes, const TokenMove* moves, const std::int32_t* ends,
                      std::int32_t n_lists, const CudaContext& context) {
  launch(context, "move_tokens", token_bytes % 16 == 0 ? move_kernel<uint4> : move_kernel<uint2>,
         dim3(static_cast<unsigned>(n_lists)), dim3(kWarps * kWarp), 0, base, token_bytes, moves, ends);
}

}  // namespace mneme
