// What a skinny GEMM is asked for, and the ring in shared memory that weights go through: its stages, the order in which a
// thread block takes them, and their requests.
#pragma once

#include "src/cuda/common.cuh"
#include "src/cuda/copy_ring.cuh"
#include "src/cuda/read_once.cuh"
#include "src/cuda/tensor_map.cuh"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"

namespace mneme::cuda {

constexpr int kSkinnyWarps = 8, kSkinnyThreads = kSkinnyWarps * kWarp;
constexpr int kMaxStages = 8, kMaxSplits = 8;
constexpr int kStepColumns = 32;  // of a step

enum class SkinnyOutput : int { kStore, kResidual, kSwiglu };

struct SkinnyProblem {
  const __nv_bfloat16* x;
  const std::byte* w;
  std::int64_t w_stride;  // bytes between octets (bf16: between rows)
  int m, k, n_out;
  int pieces, splits;  // stages per row of tiles; parts of K
  int units;           // tiles * splits
  int stages;
  SkinnyOutput kind;
  int half;  // kSwiglu: the first row of `up`
  DeferredNorm norm;
  SkinnyGemmStore store;
  SkinnyGemmResidual residual;
  int parts;  // kResidual: of a row's sums
  __nv_bfloat16* swiglu;
  float* partial;         // [units][kColumns][kRows], splits > 1
  std::int32_t* arrived;  // [tiles], zero between launches
  std::byte* permuted;    // x as wgmma takes it, or null
};

struct SkinnyRing {
  std::uint32_t data, full, empty;  // shared addresses; 8-byte mbarriers, one per stage
  int stages, stage = 0, before = 0;
  std::uint32_t parity = 0, parity_before = 0;
  __device__ __forceinline__ void advance() {
    before = stage, parity_before = parity;
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ std::uint32_t full_at() const { return full + stage * 8; }
  __device__ __forceinline__ std::uint32_t empty_at() const { return empty + stage * 8; }
};

// The stages that a thread block goes through: units, and the pieces of each.
struct SkinnyWalk {
  int unit, piece, end, pieces, splits, units;

  __device__ __forceinline__ SkinnyWalk(const SkinnyProblem& p)
      : unit(blockIdx.x), pieces(p.pieces), splits(p.splits), units(p.units) {
    open();
  }
  __device__ __forceinline__ void open() {
    piece = 0, end = pieces;
    if (splits == 1) return;
    const int part = unit % splits;
    piece = pieces * part / splits, end = pieces * (part + 1) / splits;
  }
  __device__ __forceinline__ bool done() const { return unit >= units; }
  __device__ __forceinline__ int tile() const { return splits == 1 ? unit : unit / splits; }
  // True: the unit ends with this stage.
  __device__ __forceinline__ bool advance() {
    if (++piece < end) return false;
    unit += gridDim.x;
    open();
    return true;
  }
};

// The first row of w of half `high` of a tile's 16 rows.
template <typename S>
__device__ __forceinline__ int row_of(const SkinnyProblem& p, int tile, int row_tile, int high) {
  const int n = tile * (S::kRows / 16) + row_tile;
  return p.kind == SkinnyOutput::kSwiglu ? n * 8 + high * p.half : n * 16 + high * 8;
}

// Requests stage `slot` of the ring. Called by one warp where S::kOneWarpCopies, else by all. Hopper: a bulk copy per
// octet (bf16: boxes of rows), issued by a lane each. Elsewhere 16 bytes a lane.
template <typename F, typename S>
__device__ __forceinline__ void request_stage(const SkinnyProblem& p, const CUtensorMap& map, int lines,
                                              const SkinnyWalk& walk, const SkinnyRing& ring, int slot) {
  const std::uint32_t stage = ring.data + slot * S::kStageBytes, full = ring.full + slot * 8;
  const auto row_at = [&](int octet) { return row_of<S>(p, walk.tile(), octet / 2, octet % 2); };
  const std::int64_t row_bytes = F::kRowMajor ? std::int64_t{p.k} * 2 : p.w_stride;
  constexpr int kPieceBytes = F::kRowMajor ? S::kRowBytes : S::kOctetBytes;
  const std::int64_t from = std::int64_t{walk.piece} * kPieceBytes;
  const int bytes = static_cast<int>(min(std::int64_t{kPieceBytes}, row_bytes - from));
#if __CUDA_ARCH__ >= 900
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) barrier_expect(full, F::kRowMajor ? S::kStageBytes : bytes * S::kOctets);
  __syncwarp();
  if (lane >= S::kOctets) return;
  const std::uint32_t to = stage + lane * S::kOctetBytes;
  if constexpr (F::kRowMajor) {
    copy_box(to, map, 0, walk.piece * lines, row_at(lane), full);
  } else {
    const int octet = min(row_at(lane), p.n_out - 1) / 8;
    copy_bulk_once(to, p.w + octet * p.w_stride + from, bytes, full);
  }
#else
  if constexpr (S::kOneWarpCopies) {
    for (int octet = 0; octet < S::kOctets; ++octet) {
      const std::byte* source = p.w + min(row_at(octet), p.n_out - 1) / 8 * p.w_stride + from;
      for (int at = threadIdx.x % kWarp * 16; at < bytes; at += kWarp * 16)
        copy_async(stage + octet * S::kOctetBytes + at, source + at);
    }
  } else {
    constexpr int kPieces = kPieceBytes / 16, kParts = S::kStageBytes / kPieceBytes;  // octets, or rows
    for (int i = threadIdx.x; i < kParts * kPieces; i += S::kThreads) {
      const int part = i / kPieces, at = i % kPieces * 16;
      if (at >= bytes) continue;
      const int row = min(F::kRowMajor ? row_at(part / 8) + part % 8 : row_at(part), p.n_out - 1);
      const std::byte* source = p.w + (F::kRowMajor ? row : row / 8) * p.w_stride + from;
      copy_async_once(stage + part * kPieceBytes + at, source + at, 16);
    }
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
#endif
}

}  // namespace mneme::cuda
