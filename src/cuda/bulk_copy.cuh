// Device-side copies out of device memory or mapped host memory: by a warp's loads and stores, or by bulk copies
// (cp.async.bulk) that one thread issues.
#pragma once

#include "src/cuda/common.cuh"

namespace mneme::cuda {

constexpr int kPieceLoads = 8;                         // 16-byte loads in flight per lane
constexpr int kPieceBytes = kPieceLoads * kWarp * 16;  // 4 KiB
constexpr int kBulkBytes = 8 << 10;                    // of one bulk copy; issuing it costs a thread 0.1 us

// As load_stream(), of 8 bytes.
__device__ __forceinline__ uint2 load_stream_two(const void* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

// Logarithm of the number of equal pieces of at most `most` bytes that a page has. A page of 32 tokens has 128 bytes a
// channel, or 64 and 256 more, so for every head size the pieces are multiples of 64 bytes.
__device__ __forceinline__ int page_piece_shift(int page_bytes, int most) {
  int shift = 0;
  while (page_bytes >> shift > most) ++shift;
  return shift;
}

// Copies a piece of at most kPieceBytes, a multiple of 16: all loads before the first store.
__device__ __forceinline__ void copy_piece(std::byte* to, const std::byte* from, int bytes = kPieceBytes) {
  const int lane = threadIdx.x % kWarp, words = bytes / 16;
  uint4 v[kPieceLoads];
#pragma unroll
  for (int i = 0; i < kPieceLoads; ++i)
    if (i * kWarp + lane < words) v[i] = load_stream(from + (i * kWarp + lane) * 16);
#pragma unroll
  for (int i = 0; i < kPieceLoads; ++i)
    if (i * kWarp + lane < words) reinterpret_cast<uint4*>(to)[i * kWarp + lane] = v[i];
}

// Copies n pages of `bytes` bytes, piece by piece.
template <typename From, typename To>
__device__ __forceinline__ void copy_pages(int n, int bytes, int warp, int n_warps, From&& from, To&& to) {
  const int shift = page_piece_shift(bytes, kPieceBytes), piece = bytes >> shift;
  for (int i = warp; i < n << shift; i += n_warps) {
    const int page = i >> shift, offset = (i - (page << shift)) * piece;
    copy_piece(to(page) + offset, from(page) + offset, piece);
  }
}

// Copies n tokens of 8 bits, [codes | scales] in `bytes` bytes. Lane i has the scales of the i-th token.
template <typename From, typename To>
__device__ __forceinline__ void copy_code_tokens(int n, int bytes, int warp, int n_warps, From&& from, To&& to) {
  constexpr int kScales = 8;
  const int lane = threadIdx.x % kWarp, codes = bytes - kScales;
#pragma unroll 1
  for (int first = warp * kPieceLoads; first < n; first += n_warps * kPieceLoads) {
    const bool has_scales = lane < kPieceLoads && first + lane < n;
    const uint2 scales = has_scales ? load_stream_two(from(first + lane) + codes) : uint2{};
#pragma unroll 1
    for (int at = lane * 8; at < codes; at += kWarp * 8) {
      uint2 v[kPieceLoads];
#pragma unroll
      for (int i = 0; i < kPieceLoads; ++i)
        if (first + i < n) v[i] = load_stream_two(from(first + i) + at);
#pragma unroll
      for (int i = 0; i < kPieceLoads; ++i)
        if (first + i < n) *reinterpret_cast<uint2*>(to(first + i) + at) = v[i];
    }
    if (has_scales) *reinterpret_cast<uint2*>(to(first + lane) + codes) = scales;
  }
}

// Copies n tokens of `bytes` bytes of [K | V] each in 16 bits. A warp keeps kPieceLoads loads in flight.
template <typename From, typename To>
__device__ __forceinline__ void copy_half_tokens(int n, int bytes, int warp, int n_warps, From&& from, To&& to) {
  for (int first = warp * kPieceLoads; first < n; first += n_warps * kPieceLoads) {
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x) % kWarp * 16; at < bytes; at += kWarp * 16) {
      uint4 v[kPieceLoads];
#pragma unroll
      for (int i = 0; i < kPieceLoads; ++i)
        if (first + i < n) v[i] = load_stream(from(first + i) + at);
#pragma unroll
      for (int i = 0; i < kPieceLoads; ++i)
        if (first + i < n) *reinterpret_cast<uint4*>(to(first + i) + at) = v[i];
    }
  }
}

// Copies one token's [K | V] by a warp, past L1.   Word: uint4; uint2 for 8 bits, 2 D + 8 bytes
template <typename Word>
__device__ __forceinline__ void copy_token(std::byte* to, const std::byte* from, int bytes) {
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < bytes / static_cast<int>(sizeof(Word)); i += kWarp)
    reinterpret_cast<Word*>(to)[i] = __ldcg(reinterpret_cast<const Word*>(from) + i);
}
__device__ __forceinline__ void copy_token(std::byte* to, const std::byte* from, int bytes) {
  bytes % 16 == 0 ? copy_token<uint4>(to, from, bytes) : copy_token<uint2>(to, from, bytes);
}

#if __CUDA_ARCH__ >= 900
// A ring of kStages bulk copies, issued by one thread: host memory to shared memory, and from there to cache slots. A
// stage is refilled once the store after the one that drains it was issued: with a single stage it would wait for
// itself.
template <int kStages>
struct BulkCopies {
  static_assert(kStages >= 2 && kStages <= 32);
  std::uint32_t ring, barriers;  // shared-memory addresses: pieces, mbarriers of 8 bytes
  int piece_bytes = kBulkBytes;  // at most this, a multiple of 16
  std::uint32_t parity = 0;      // bit i: phase parity of stage i

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
  // Copies n pieces, piece i from from(i) to to(i).
  template <typename From, typename To>
  __device__ __forceinline__ void run(int n, From&& from, To&& to) {
#pragma unroll 1
    for (int i = 0; i < min(n, kStages); ++i) load(i, from(i));
    int stage = 0, last = 0;
    for (int i = 0; i < n; ++i) {
      store(stage, to(i));
      if (i > 0) {
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the store before this one has read its stage
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
