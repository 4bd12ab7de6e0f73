// Pieces of memory that device code moves, out of mapped host memory as well: by a warp's loads and stores, or by bulk
// copies that one thread asks for.
#pragma once

#include "src/kernels/cuda_common.cuh"

namespace mneme::cuda {

constexpr int kPieceLoads = 8;                         // of a lane, under way
constexpr int kPieceBytes = kPieceLoads * kWarp * 16;  // 4 KiB
constexpr int kBulkBytes = 8 << 10;                    // of a bulk copy: asking for one takes a thread 0.1 us

// One piece: all loads before the first store. Blocks are whole pieces: head_dim is a multiple of 32.
__device__ __forceinline__ void copy_piece(std::byte* to, const std::byte* from) {
  const int lane = threadIdx.x % kWarp;
  uint4 v[kPieceLoads];
#pragma unroll
  for (int i = 0; i < kPieceLoads; ++i) v[i] = load_stream(from + (i * kWarp + lane) * 16);
#pragma unroll
  for (int i = 0; i < kPieceLoads; ++i) reinterpret_cast<uint4*>(to)[i * kWarp + lane] = v[i];
}

// n tokens' keys and values of 256 or 512 bytes, kPieceLoads of a warp's at once.
template <typename From, typename To>
__device__ __forceinline__ void copy_tokens(int n, int bytes, int warp, int n_warps, From&& from, To&& to) {
  const int lane = threadIdx.x % kWarp;
  const bool has = lane * 16 < bytes;
  for (int first = warp * kPieceLoads; first < n; first += n_warps * kPieceLoads) {
    uint4 v[kPieceLoads];
#pragma unroll
    for (int i = 0; i < kPieceLoads; ++i)
      if (has && first + i < n) v[i] = load_stream(from(first + i) + lane * 16);
#pragma unroll
    for (int i = 0; i < kPieceLoads; ++i)
      if (has && first + i < n) reinterpret_cast<uint4*>(to(first + i))[lane] = v[i];
  }
}

#if __CUDA_ARCH__ >= 900
// Pieces on their way: from memory of the host into a ring of shared memory, and on into slots. One thread's. A stage
// is asked to be filled again when the store behind the one that empties it has begun: a single one would wait for
// itself.
template <int kStages>
struct BulkCopies {
  static_assert(kStages >= 2 && kStages <= 32);
  std::uint32_t ring, barriers;  // shared addresses: pieces, barriers of 8 bytes
  int piece_bytes = kBulkBytes;  // at most that, a multiple of 16
  std::uint32_t parity = 0;      // bit i: of stage i

  __device__ __forceinline__ void load(int stage, const std::byte* from) const {
    barrier_expect(barriers + stage * 8, piece_bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     ring + stage * kBulkBytes),
                 "l"(from), "r"(piece_bytes), "r"(barriers + stage * 8)
                 : "memory");
  }
  __device__ __forceinline__ void store(int stage, std::byte* to) {
    barrier_wait(barriers + stage * 8, parity >> stage & 1);
    parity ^= 1u << stage;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(ring + stage * kBulkBytes), "r"(piece_bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  // n pieces; from(i) and to(i) say which.
  template <typename From, typename To>
  __device__ __forceinline__ void run(int n, From&& from, To&& to) {
#pragma unroll 1
    for (int i = 0; i < min(n, kStages); ++i) load(i, from(i));
    int stage = 0, last = 0;
    for (int i = 0; i < n; ++i) {
      store(stage, to(i));
      if (i > 0) {
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the store before this one has left its stage
        if (i - 1 + kStages < n) load(last, from(i - 1 + kStages));
      }
      last = stage;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
};
#endif

}  // namespace mneme::cuda
