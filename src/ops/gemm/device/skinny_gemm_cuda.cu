// Skinny GEMMs: bf16 weights with 1 to 8 rows of x here, all else by skinny_kernel.cuh and wgmma/.
//
// Each thread block streams tiles of 16 rows of w through a ring in shared memory. A producer warp only issues copies,
// so that loads never stall at the end of a tile, and it starts before the preceding kernel has ended. Eight consumer
// warps multiply: of every piece (16 rows, 1 KiB of each) a warp has an eighth of the width, for all rows of x.
#include <algorithm>

#include "src/cuda/common.cuh"
#include "src/cuda/read_once.cuh"
#include "src/cuda/tensor_map.cuh"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"
#include "src/ops/gemm/device/skinny_launch.cuh"
#include "src/ops/gemm/device/wgmma_backend.cuh"

namespace mneme {
namespace cuda {

MNEME_SKINNY_FORMAT(extern, Bf16Format)
MNEME_SKINNY_FORMAT(extern, Q8_0Format)
MNEME_SKINNY_FORMAT(extern, Q4_0Format)
MNEME_SKINNY_FORMAT(extern, Q4_1Format)
MNEME_SKINNY_FORMAT(extern, Q5_0Format)
MNEME_SKINNY_FORMAT(extern, Q5_1Format)
MNEME_SKINNY_FORMAT(extern, Q2KFormat)
MNEME_SKINNY_FORMAT(extern, Q3KFormat)
MNEME_SKINNY_FORMAT(extern, Q4KFormat)
MNEME_SKINNY_FORMAT(extern, Q5KFormat)
MNEME_SKINNY_FORMAT(extern, Q6KFormat)
MNEME_SKINNY_FORMAT(extern, Iq4NlFormat)
MNEME_SKINNY_FORMAT(extern, Iq4XsFormat)
MNEME_SKINNY_FORMAT(extern, Mxfp4Format)
MNEME_SKINNY_FORMAT(extern, Nvfp4Format)
MNEME_SKINNY_FORMAT(extern, Fp8Format)
MNEME_SKINNY_FORMAT(extern, Int4Format)
MNEME_SKINNY_FORMAT(extern, Int8Format)

}  // namespace cuda

namespace {

using namespace cuda;  // NOLINT: the kernels' own namespace

constexpr int kWarps = kSkinnyWarps, kConsumers = kWarps * kWarp, kThreads = kConsumers + kWarp;
constexpr int kTileRows = 16, kColumns = 8;  // of a tile of the product: rows of w, rows of x
constexpr int kStep = 32;                    // columns of w (and of x) per two mma
constexpr int kBlocksEach = 2;               // thread blocks per SM: 5 % faster than one (docs/design/cuda.md)
constexpr int kPieceBytes = 1024, kChunkBytes = 64, kWarpChunks = kPieceBytes / kChunkBytes / kWarps;
constexpr int kHalfRows = kTileRows / 2;
constexpr int kTileSums = kColumns * kTileRows;
// Rows of x from which on wgmma is faster where the device has it: 17 with weights that have minima or a scale for 64
// columns, else 33.
constexpr int kWgmmaRowsMinima = 17, kWgmmaRows = 33;

constexpr int kStages = 5;
// x is prefetched four pieces ahead: with weights at full rate a load from L2 takes 1 us, the time of two pieces.
constexpr int kPrefetch = 4;
constexpr int kStageBytes = kTileRows * kPieceBytes;

struct Weights {
  const std::byte* values;
  std::int64_t row_bytes;
  std::int32_t n_out, n_steps;
};

// TMA map: [rows, pieces of `line` bytes].
struct Map {
  CUtensorMap values;
  int lines;  // lines per piece
};

struct Ring {
  std::uint32_t data, full, empty;  // shared addresses; 8-byte mbarriers, one per stage

  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ std::uint32_t full_at() const { return full + stage * 8; }
  __device__ __forceinline__ std::uint32_t empty_at() const { return empty + stage * 8; }
};

// Requests a piece: 8 rows from `low` on, and 8 from `high` on. On Hopper by two TMA copies, because their number is
// what costs (70 cycles each); elsewhere 16 bytes at a time, repeating the last row where there are no more. There eight
// lanes copy a line of 128 bytes: with two lanes a row, an instruction touched 16 lines, and a step of the 8B shape at
// 2,048 tokens took 5.28 ms in place of 4.55 (built for 80-virtual, H200).
__device__ __forceinline__ void ask_for_piece(const Weights& w, const Map& map, int low, int high, int piece,
                                              const Ring& ring) {
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t stage = ring.data + ring.stage * kStageBytes;
#if __CUDA_ARCH__ >= 900
  if (lane != 0) return;
  barrier_expect(ring.full_at(), kStageBytes);
  copy_box(stage, map.values, 0, piece * map.lines, low, ring.full_at());
  copy_box(stage + kHalfRows * kPieceBytes, map.values, 0, piece * map.lines, high, ring.full_at());
#else
  const int bytes = static_cast<int>(min(static_cast<std::int64_t>(kPieceBytes), w.row_bytes - piece * kPieceBytes));
  constexpr int kLanes = 8;  // of a row: a line of 128 bytes
#pragma unroll
  for (int mine = lane / kLanes; mine < kTileRows; mine += kWarp / kLanes) {
    const std::int64_t row = min(w.n_out - 1, (mine < kHalfRows ? low : high) + mine % kHalfRows);
    const std::byte* from = w.values + row * w.row_bytes + static_cast<std::int64_t>(piece) * kPieceBytes;
    for (int at = lane % kLanes * 16; at < bytes; at += kLanes * 16)
      copy_async_once(stage + mine * kPieceBytes + at, from + at, 16);
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(ring.full_at()) : "memory");
#endif
}

// A warp's part of x for its chunks of a piece.
struct XPiece {
  uint4 v[kWarpChunks];

  __device__ __forceinline__ void load(const __nv_bfloat16* row, bool there, int piece, int n_steps) {
    const int first = (piece * kWarps + static_cast<int>(threadIdx.x) / kWarp) * kWarpChunks;
#pragma unroll
    for (int i = 0; i < kWarpChunks; ++i) {
      const int step = first + i;
      v[i] = {0, 0, 0, 0};
      if (there && step < n_steps)
        v[i] = *reinterpret_cast<const uint4*>(row + static_cast<std::int64_t>(step) * kStep);
    }
  }
};

__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
// Multiplies a warp's chunks of the piece in `stage` and adds to c.
__device__ __forceinline__ void take_piece(std::uint32_t stage, const XPiece& x, int piece, int n_steps,
                                           float (&c)[4]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kWarpChunks; ++i) {
    const int chunk = warp * kWarpChunks + i;
    if (piece * kWarps * kWarpChunks + chunk >= n_steps) break;  // the ring holds an older piece there
    const std::uint32_t at = stage + g * kPieceBytes + chunk * kChunkBytes + t * 16;
    const uint4 p = load_shared(at), q = load_shared(at + kHalfRows * kPieceBytes), v = x.v[i];
    mma<__nv_bfloat16>(c, p.x, q.x, p.y, q.y, v.x, v.y);
    mma<__nv_bfloat16>(c, p.z, q.z, p.w, q.w, v.z, v.w);
  }
}

__device__ __forceinline__ float block_sum_over_warps(const float* sums, int i) {
  float v = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) v += sums[warp * kTileSums + i];
  return v;
}

// ---- epilogues. The product's rows are w's from low(tile) and from high(tile) on, 8 each.

struct Store {
  SkinnyGemmStore out;
  int n_out;
  __device__ __forceinline__ int low(int tile) const { return tile * kTileRows; }
  __device__ __forceinline__ int high(int tile) const { return tile * kTileRows + kHalfRows; }
  __device__ __forceinline__ void finish(int tile, int i, int m, const float* sums, const float* scale) const {
    const int column = i / kTileRows, row = tile * kTileRows + i % kTileRows;
    if (i >= kTileSums || column >= m || row >= n_out) return;
    const float bias = out.bias == nullptr ? 0.0f : out.bias[row];
    static_cast<float*>(out.y)[column * out.stride + row] = block_sum_over_warps(sums, i) * scale[column] + bias;
  }
};

struct Residual {
  SkinnyGemmResidual out;
  int n_out, parts;
  __device__ __forceinline__ int low(int tile) const { return tile * kTileRows; }
  __device__ __forceinline__ int high(int tile) const { return tile * kTileRows + kHalfRows; }
  __device__ __forceinline__ void finish(int tile, int i, int m, const float* sums, const float*) const {
    const int column = i / kTileRows, row = tile * kTileRows + i % kTileRows;
    if (i >= kTileSums) return;
    float v = 0;
    if (column < m && row < n_out) {
      const std::int64_t at = static_cast<std::int64_t>(column) * n_out + row;
      v = __ldcg(out.residual + at) + block_sum_over_warps(sums, i);
      out.residual[at] = v;
      static_cast<__nv_bfloat16*>(out.x_next)[at] = __float2bfloat16_rn(v * out.norm_weight[row]);
    }
    const float square = warp_sum<kTileRows>(v * v);
    if (i % kTileRows == 0) out.sums[column * parts + tile] = square;
  }
};

// Rows 0 to 7 of the product are gate, 8 to 15 up.
struct Swiglu {
  __nv_bfloat16* out;
  int ffn;
  __device__ __forceinline__ int low(int tile) const { return tile * kHalfRows; }
  __device__ __forceinline__ int high(int tile) const { return ffn + tile * kHalfRows; }
  __device__ __forceinline__ void finish(int tile, int i, int m, const float* sums, const float* scale) const {
    const int column = i / 8, row = tile * 8 + i % 8;
    if (i >= kTileSums / 2 || column >= m || row >= ffn) return;
    const float gate = block_sum_over_warps(sums, column * kTileRows + i % 8) * scale[column];
    const float up = block_sum_over_warps(sums, column * kTileRows + i % 8 + 8) * scale[column];
    out[static_cast<std::int64_t>(column) * ffn + row] = __float2bfloat16_rn(silu(gate) * up);
  }
};

template <typename Epilogue>
__global__ void __launch_bounds__(kThreads, 2)
    stream_kernel(const __nv_bfloat16* x, int m, Weights w, const __grid_constant__ Map map, DeferredNorm norm,
                  Epilogue epilogue, int n_tiles) {
  extern __shared__ __align__(128) std::uint8_t ring_memory[];
  __shared__ std::uint64_t full[kStages], empty[kStages];
  __shared__ float sums[2][kWarps * kTileSums];
  __shared__ float scale[kColumns];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Ring ring{shared_address(ring_memory), shared_address(full), shared_address(empty)};
  if (threadIdx.x == 0) ring_init(ring.full, ring.empty, kStages, kWarps);
  __syncthreads();
  launch_dependents();
  const int n_pieces = static_cast<int>((w.row_bytes + kPieceBytes - 1) / kPieceBytes);

  if (warp == kWarps) {
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
      for (int piece = 0; piece < n_pieces; ++piece, ring.advance()) {
        barrier_wait(ring.empty_at(), ring.parity ^ 1);
        ask_for_piece(w, map, epilogue.low(tile), epilogue.high(tile), piece, ring);
      }
    }
    return;
  }

  grid_dependency_wait();
  const int g = lane / 4, t = lane % 4;
  const __nv_bfloat16* x_row = x + static_cast<std::int64_t>(g < m ? g : 0) * w.n_steps * kStep + t * 8;
  XPiece prefetch[kPrefetch];
  int x_piece = 0;  // the next to request
  const auto ask_for_x = [&](XPiece& to) {
    to.load(x_row, g < m, x_piece, w.n_steps);
    x_piece = x_piece + 1 == n_pieces ? 0 : x_piece + 1;
  };
#pragma unroll
  for (int i = 0; i < kPrefetch; ++i) ask_for_x(prefetch[i]);
  finish_norms<kWarps>(norm, m, scale);  // while x is in flight

  float c[4] = {};
  int tile = blockIdx.x, piece = 0, buffer = 0;
  while (tile < n_tiles) {
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      if (tile >= n_tiles) break;
      barrier_wait(ring.full_at(), ring.parity);
      take_piece(ring.data + ring.stage * kStageBytes, prefetch[i], piece, w.n_steps, c);
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.empty_at());
      ring.advance();
      ask_for_x(prefetch[i]);
      if (++piece < n_pieces) continue;

      float* mine = sums[buffer] + warp * kTileSums;
      mine[(2 * t) * kTileRows + g] = c[0];
      mine[(2 * t + 1) * kTileRows + g] = c[1];
      mine[(2 * t) * kTileRows + g + 8] = c[2];
      mine[(2 * t + 1) * kTileRows + g + 8] = c[3];
      asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
      epilogue.finish(tile, threadIdx.x, m, sums[buffer], scale);
      c[0] = c[1] = c[2] = c[3] = 0;
      tile += gridDim.x, piece = 0, buffer ^= 1;
    }
  }
}

Weights weights_of(const DeviceMatrix& w) {
  return {.values = w.values,
          .row_bytes = static_cast<std::int64_t>(row_bytes(w.dtype, w.n_in)),
          .n_out = static_cast<std::int32_t>(w.n_out),
          .n_steps = static_cast<std::int32_t>(w.n_in / kStep)};
}

Map map_of(const Weights& w) {
  Map map{};
  if (!has_hopper_code()) return map;
  // Lines of 128 bytes are best for memory; rows that are not a multiple of 128 use lines of 64.
  const int line = w.row_bytes % 128 == 0 ? 128 : 64;
  map.lines = kPieceBytes / line;
  map.values = tensor_map<3>(w.values, {line / 2, w.row_bytes / line, w.n_out}, {line, w.row_bytes},
                             {line / 2, map.lines, kHalfRows});
  return map;
}

template <typename Epilogue>
void run_bf16(const SkinnyProblem& p, const Epilogue& epilogue, std::int64_t n_tiles, const CudaContext& context) {
  constexpr int kShared = kStages * kStageBytes;
  static const bool ready = [] {
    cuda_check(cudaFuncSetAttribute(stream_kernel<Epilogue>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
               "a skinny GEMM's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  const Weights w = weights_of({.values = p.w, .dtype = DType::kBF16, .n_out = p.n_out, .n_in = p.k});
  const int tiles = static_cast<int>(n_tiles);
  launch(context, "skinny_gemm_bf16", stream_kernel<Epilogue>,
         dim3(static_cast<unsigned>(std::min(tiles, kBlocksEach * sm_count()))), dim3(kThreads), kShared, p.x, p.m, w,
         map_of(w), p.norm, epilogue, tiles);
}

std::int64_t tiles_of(std::int64_t n, int rows) {
  return (n + rows - 1) / rows;
}

SkinnyProblem problem_of(const void* x, std::int32_t m, const DeviceMatrix& w, const SkinnyWorkspace& workspace) {
  SkinnyProblem p{};
  p.x = static_cast<const __nv_bfloat16*>(x);
  p.w = w.values;
  p.w_stride = is_quantised(w.dtype) ? static_cast<std::int64_t>(w.octet_bytes()) : 2 * w.n_in;
  p.m = m, p.k = static_cast<int>(w.n_in), p.n_out = static_cast<int>(w.n_out);
  p.partial = workspace.partial, p.arrived = workspace.arrived;
  p.splits = workspace.splits, p.permuted = workspace.permuted;
  return p;
}

// Rows that the bf16 kernel of this file takes.
bool streams_bf16(const DeviceMatrix& w, std::int32_t m) {
  return w.dtype == DType::kBF16 && m <= kColumns;
}

const WgmmaGemm* loaded_wgmma() {
  const WgmmaGemm* wgmma = Backend<WgmmaGemm>::find();
  return wgmma != nullptr && wgmma->loaded() ? wgmma : nullptr;
}

// The kernel by wgmma, where it is the faster one; else null.
const WgmmaGemm* wgmma_for(DType weights, const SkinnyProblem& p) {
  if (weights == DType::kBF16) return p.m > kSkinnyBf16Rows ? loaded_wgmma() : nullptr;
  int from = kWgmmaRows;
  with_format(weights, [&](auto format) {
    if (decltype(format)::kMinimum || decltype(format)::kScale == Scale::kFloat64) from = kWgmmaRowsMinima;
  });
  return p.m < from || p.permuted == nullptr ? nullptr : loaded_wgmma();
}

void run(const DeviceMatrix& w, const SkinnyProblem& p, const CudaContext& context) {
  if (const WgmmaGemm* wgmma = wgmma_for(w.dtype, p)) return wgmma->launch(w.dtype, p, context);
  if (w.dtype == DType::kBF16) return launch_skinny<Bf16Format>(p, context);
  with_format(w.dtype, [&](auto format) { launch_skinny<decltype(format)>(p, context); });
}

}  // namespace

std::size_t skinny_partial_bytes() {
  return std::size_t{kSkinnyUnits} * kSkinnyRows * kSkinnyRows * sizeof(float);
}

std::size_t skinny_permuted_bytes(std::int64_t k) {
  // 128 columns of 64 rows in bf16, and sums of eight groups.
  constexpr std::size_t kSlabBytes = kSkinnyRows * (kSlab * 2 + 8 * 4);
  return static_cast<std::size_t>((k + 2 * kSlab - 1) / (2 * kSlab) * 2) * kSlabBytes;
}

bool skinny_gemm_takes(DType weights, std::int32_t m) {
  if (m < 1 || m > kSkinnyRows) return false;
  if (weights == DType::kBF16)
    return m <= kColumns || skinny_tiles<Bf16Format>(m) > 0 ||
           (m > kSkinnyBf16Rows && m <= kWgmmaBf16Rows && loaded_wgmma() != nullptr);
  return is_quantised(weights);
}

void skinny_gemm_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const DeferredNorm& norm,
                      const SkinnyGemmStore& out, const SkinnyWorkspace& workspace, const CudaContext& context) {
  SkinnyProblem p = problem_of(x, m, w, workspace);
  p.kind = SkinnyOutput::kStore, p.norm = norm, p.store = out;
  if (p.store.stride == 0) p.store.stride = w.n_out;
  if (streams_bf16(w, m)) return run_bf16(p, Store{p.store, p.n_out}, tiles_of(w.n_out, kTileRows), context);
  run(w, p, context);
}

std::int32_t residual_parts(std::int64_t n_out, std::int32_t m) {
  return static_cast<std::int32_t>(tiles_of(n_out, m <= kColumns ? kTileRows : SkinnyShape<Bf16Format, 2>::kRows));
}

void skinny_gemm_residual_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const SkinnyGemmResidual& out,
                               const SkinnyWorkspace& workspace, const CudaContext& context) {
  SkinnyProblem p = problem_of(x, m, w, workspace);
  p.kind = SkinnyOutput::kResidual, p.residual = out, p.parts = residual_parts(w.n_out, m);
  if (streams_bf16(w, m)) return run_bf16(p, Residual{out, p.n_out, p.parts}, tiles_of(w.n_out, kTileRows), context);
  run(w, p, context);
}

void skinny_gemm_swiglu_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const DeferredNorm& norm, void* out,
                             const SkinnyWorkspace& workspace, const CudaContext& context) {
  SkinnyProblem p = problem_of(x, m, w, workspace);
  p.kind = SkinnyOutput::kSwiglu, p.norm = norm, p.half = p.n_out / 2, p.swiglu = static_cast<__nv_bfloat16*>(out);
  if (streams_bf16(w, m)) return run_bf16(p, Swiglu{p.swiglu, p.half}, tiles_of(p.half, kTileRows / 2), context);
  run(w, p, context);
}

}  // namespace mneme
