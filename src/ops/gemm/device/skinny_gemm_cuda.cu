// Skinny GEMM kernels. Each thread block streams tiles of 16 rows of w through a ring in shared memory. A producer warp
// only issues copies, so that loads never stall at the end of a tile, and it starts before the preceding kernel has
// ended. Eight consumer warps multiply: of every piece (16 rows, 1 KiB of each) a warp has an eighth of the width, for
// all rows of x.
#include <algorithm>

#include "src/cuda/common.cuh"
#include "src/cuda/tensor_map.cuh"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT: the kernels' own namespace

constexpr int kWarps = 8, kConsumers = kWarps * kWarp, kThreads = kConsumers + kWarp;
constexpr int kTileRows = 16, kColumns = 8;  // of a tile of the product: rows of w, rows of x
constexpr int kStep = 32;                    // columns of w (and of x) per two mma
constexpr int kBlocksEach = 2;               // thread blocks per SM: 5 % faster than one (docs/design/cuda.md)
constexpr int kPieceBytes = 1024, kChunkBytes = 64, kWarpChunks = kPieceBytes / kChunkBytes / kWarps;
constexpr int kHalfRows = kTileRows / 2;
constexpr int kTileSums = kColumns * kTileRows;

// A chunk is 64 bytes of a row, 16 per lane of four: kSteps steps. kScaleBytes are a row's scales of a piece. x is
// prefetched kPrefetch pieces ahead: with weights at full rate a load from L2 takes 1 us, the time of two pieces.
struct Bf16Weights {
  static constexpr int kSteps = 1, kScaleBytes = 0, kPrefetch = 4, kStages = 5;
};
struct Q8Weights {
  static constexpr int kSteps = 2, kScaleBytes = 64, kPrefetch = 2, kStages = 5;
};
struct Q4Weights {
  static constexpr int kSteps = 4, kScaleBytes = 128, kPrefetch = 1, kStages = 5;
};
// A fifth stage of 20 KiB would exceed the 99 KiB of shared memory that a thread block of sm_86, 89 and 120 may have.
struct Q41Weights {
  static constexpr int kSteps = 4, kScaleBytes = 256, kPrefetch = 1, kStages = 4;
};
// A stage: the values of 16 rows, then their scales.
template <typename W>
constexpr int kStageBytes = kTileRows*(kPieceBytes + W::kScaleBytes);

struct Weights {
  const std::byte *values, *scales;
  std::int64_t row_bytes, scale_row_bytes;
  std::int32_t n_out, n_steps;
};

// TMA maps: [rows, pieces of `line` bytes], and [rows, scales].
struct Maps {
  CUtensorMap values, scales;
  int lines;  // lines per piece
};

// Two bytes of a quantised row to two bf16, exact: 128 + the low seven bits, minus 256 or 128 by the sign.
__device__ __forceinline__ std::uint32_t bf16_of_s8(std::uint32_t bytes, std::uint32_t selector) {
  const std::uint32_t x = __byte_perm(bytes ^ 0x80808080u, 0, selector);
  const std::uint32_t low = (x & 0x007f007fu) | 0x43004300u;
  const std::uint32_t base = ((~x) & 0x00800080u) | 0x43004300u;
  const __nv_bfloat162 v =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(low), reinterpret_cast<const __nv_bfloat162&>(base));
  return reinterpret_cast<const std::uint32_t&>(v);
}

// Nibbles i and i + 4 to two bf16: 128 + nibble - (128 + kZero).
template <int kZero>
__device__ __forceinline__ std::uint32_t bf16_of_4_bits(std::uint32_t nibbles, int i) {
  const std::uint32_t x = ((nibbles >> (4 * i)) & 0x000f000fu) | 0x43004300u;
  const std::uint32_t base = 0x43004300u + kZero * 0x00010001u;
  const __nv_bfloat162 v =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(x), reinterpret_cast<const __nv_bfloat162&>(base));
  return reinterpret_cast<const std::uint32_t&>(v);
}

// A lane's eight weights of step `s` of a chunk, in four registers.
template <typename W>
__device__ __forceinline__ void unpack(const uint4& chunk, int s, std::uint32_t (&out)[4]);
template <>
__device__ __forceinline__ void unpack<Bf16Weights>(const uint4& chunk, int, std::uint32_t (&out)[4]) {
  out[0] = chunk.x, out[1] = chunk.y, out[2] = chunk.z, out[3] = chunk.w;
}
template <>
__device__ __forceinline__ void unpack<Q8Weights>(const uint4& chunk, int s, std::uint32_t (&out)[4]) {
  const std::uint32_t a = s == 0 ? chunk.x : chunk.z, b = s == 0 ? chunk.y : chunk.w;
  out[0] = bf16_of_s8(a, 0x4140), out[1] = bf16_of_s8(a, 0x4342);
  out[2] = bf16_of_s8(b, 0x4140), out[3] = bf16_of_s8(b, 0x4342);
}
template <int kZero>
__device__ __forceinline__ void unpack_4_bits(const uint4& chunk, int s, std::uint32_t (&out)[4]) {
  const std::uint32_t v = s == 0 ? chunk.x : s == 1 ? chunk.y : s == 2 ? chunk.z : chunk.w;
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = bf16_of_4_bits<kZero>(v, i);
}
template <>
__device__ __forceinline__ void unpack<Q4Weights>(const uint4& chunk, int s, std::uint32_t (&out)[4]) {
  unpack_4_bits<8>(chunk, s, out);
}
template <>
__device__ __forceinline__ void unpack<Q41Weights>(const uint4& chunk, int s, std::uint32_t (&out)[4]) {
  unpack_4_bits<0>(chunk, s, out);
}

template <int kStages>
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

// Requests a piece: 8 rows from `low` on, and 8 from `high` on. On Hopper by two TMA copies (and two for the scales),
// because their number is what costs (70 cycles each); elsewhere 16 bytes at a time, repeating the last row where there
// are no more.
template <typename W>
__device__ __forceinline__ void ask_for_piece(const Weights& w, const Maps& maps, int low, int high, int piece,
                                              const Ring<W::kStages>& ring) {
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t stage = ring.data + ring.stage * kStageBytes<W>;
  const std::uint32_t scales = stage + kTileRows * kPieceBytes;
#if __CUDA_ARCH__ >= 900
  if (lane != 0) return;
  barrier_expect(ring.full_at(), kStageBytes<W>);
  copy_box(stage, maps.values, 0, piece * maps.lines, low, ring.full_at());
  copy_box(stage + kHalfRows * kPieceBytes, maps.values, 0, piece * maps.lines, high, ring.full_at());
  if constexpr (W::kSteps > 1) {
    copy_box(scales, maps.scales, piece * (W::kScaleBytes / 2), low, ring.full_at());
    copy_box(scales + kHalfRows * W::kScaleBytes, maps.scales, piece * (W::kScaleBytes / 2), high, ring.full_at());
  }
#else
  const int bytes = static_cast<int>(min(static_cast<std::int64_t>(kPieceBytes), w.row_bytes - piece * kPieceBytes));
  const int scale_bytes =
      static_cast<int>(min(static_cast<std::int64_t>(W::kScaleBytes), w.scale_row_bytes - piece * W::kScaleBytes));
  const int mine = lane % kTileRows, half = lane / kTileRows;  // two lanes per row
  const std::int64_t row = min(w.n_out - 1, (mine < kHalfRows ? low : high) + mine % kHalfRows);
  const std::byte* from = w.values + row * w.row_bytes + static_cast<std::int64_t>(piece) * kPieceBytes;
  const std::byte* scales_from = w.scales + row * w.scale_row_bytes + static_cast<std::int64_t>(piece) * W::kScaleBytes;
  for (int at = half * 16; at < bytes; at += 32) copy_async(stage + mine * kPieceBytes + at, from + at);
  if (W::kSteps > 1)
    for (int at = half * 16; at < scale_bytes; at += 32)
      copy_async(scales + mine * W::kScaleBytes + at, scales_from + at);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(ring.full_at()) : "memory");
#endif
}

// A warp's part of x for its chunks of a piece.
template <typename W>
struct XPiece {
  uint4 v[kWarpChunks][W::kSteps];

  __device__ __forceinline__ void load(const __nv_bfloat16* row, bool there, int piece, int n_steps) {
    const int first = (piece * kWarps + static_cast<int>(threadIdx.x) / kWarp) * kWarpChunks;
#pragma unroll
    for (int i = 0; i < kWarpChunks; ++i)
#pragma unroll
      for (int s = 0; s < W::kSteps; ++s) {
        const int step = (first + i) * W::kSteps + s;
        v[i][s] = {0, 0, 0, 0};
        if (there && step < n_steps)
          v[i][s] = *reinterpret_cast<const uint4*>(row + static_cast<std::int64_t>(step) * kStep);
      }
  }
};

__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ __forceinline__ float load_shared_scale(std::uint32_t address) {
  std::uint16_t bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address));
  return __half2float(__ushort_as_half(bits));
}
// A scale and a minimum.
__device__ __forceinline__ float2 load_shared_scales(std::uint32_t address) {
  std::uint32_t bits;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bits) : "r"(address));
  return __half22float2(reinterpret_cast<const __half2&>(bits));
}

// c += a block's part of the sums, scaled. `scales` of rows g and g + 8 are `high` bytes apart.
template <typename W>
__device__ __forceinline__ void add_scaled(float (&c)[4], const float (&part)[4], const uint4& x, std::uint32_t scales,
                                           int high) {
  if constexpr (W::kScaleBytes == Q41Weights::kScaleBytes) {
    // The sums of x, which multiply the minima, by mma: it leaves them in the lanes that need them.
    constexpr std::uint32_t kOnes = 0x3f803f80u;
    float sum[4] = {};
    mma<__nv_bfloat16>(sum, kOnes, kOnes, kOnes, kOnes, x.x, x.y);
    mma<__nv_bfloat16>(sum, kOnes, kOnes, kOnes, kOnes, x.z, x.w);
    const float2 ls = load_shared_scales(scales), hs = load_shared_scales(scales + high);
    c[0] += ls.x * part[0] + ls.y * sum[0], c[1] += ls.x * part[1] + ls.y * sum[1];
    c[2] += hs.x * part[2] + hs.y * sum[2], c[3] += hs.x * part[3] + hs.y * sum[3];
  } else {
    const float ls = load_shared_scale(scales), hs = load_shared_scale(scales + high);
    c[0] += ls * part[0], c[1] += ls * part[1], c[2] += hs * part[2], c[3] += hs * part[3];
  }
}

// Multiplies a warp's chunks of the piece in `stage` and adds to c.
template <typename W>
__device__ __forceinline__ void take_piece(std::uint32_t stage, const XPiece<W>& x, int piece, int n_steps,
                                           float (&c)[4]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kWarpChunks; ++i) {
    const int chunk = warp * kWarpChunks + i;
    if ((piece * kWarps * kWarpChunks + chunk) * W::kSteps >= n_steps) break;  // the ring holds an older piece there
    const std::uint32_t at = stage + g * kPieceBytes + chunk * kChunkBytes + t * 16;
    const uint4 low = load_shared(at), high = load_shared(at + kHalfRows * kPieceBytes);
#pragma unroll
    for (int s = 0; s < W::kSteps; ++s) {
      std::uint32_t p[4], q[4];
      unpack<W>(low, s, p);
      unpack<W>(high, s, q);
      const uint4& v = x.v[i][s];
      if constexpr (W::kSteps == 1) {
        mma<__nv_bfloat16>(c, p[0], q[0], p[1], q[1], v.x, v.y);
        mma<__nv_bfloat16>(c, p[2], q[2], p[3], q[3], v.z, v.w);
      } else {
        float part[4] = {};
        mma<__nv_bfloat16>(part, p[0], q[0], p[1], q[1], v.x, v.y);
        mma<__nv_bfloat16>(part, p[2], q[2], p[3], q[3], v.z, v.w);
        constexpr int kBlockBytes = W::kScaleBytes / (kWarps * kWarpChunks * W::kSteps);
        const std::uint32_t scales =
            stage + kTileRows * kPieceBytes + g * W::kScaleBytes + (chunk * W::kSteps + s) * kBlockBytes;
        add_scaled<W>(c, part, v, scales, kHalfRows * W::kScaleBytes);
      }
    }
  }
}

__device__ __forceinline__ float block_sum_over_warps(const float* sums, int i) {
  float v = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) v += sums[warp * kTileSums + i];
  return v;
}

// 1 / sqrt(mean + eps) of x's row `warp`, into scale[warp]. Call after grid_dependency_wait().
__device__ __forceinline__ void finish_norm(const DeferredNorm& norm, int m, float* scale) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (warp >= m) return;
  if (norm.sums == nullptr) {
    if (lane == 0) scale[warp] = 1.0f;
    return;
  }
  float sum = 0;
  for (int i = lane; i < norm.n_parts; i += kWarp) sum += __ldcg(norm.sums + i * kColumns + warp);
  sum = warp_sum(sum);
  if (lane == 0) scale[warp] = rsqrtf(sum / static_cast<float>(norm.n) + norm.eps);
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
    out.y[static_cast<std::int64_t>(column) * n_out + row] = block_sum_over_warps(sums, i) * scale[column] + bias;
  }
};

struct Residual {
  SkinnyGemmResidual out;
  int n_out;
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
    if (i % kTileRows == 0) out.sums[tile * kColumns + column] = square;
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
    out[static_cast<std::int64_t>(column) * ffn + row] = __float2bfloat16_rn(gate / (1.0f + __expf(-gate)) * up);
  }
};

template <typename W, typename Epilogue>
__global__ void __launch_bounds__(kThreads, 2)
    stream_kernel(const __nv_bfloat16* x, int m, Weights w, const __grid_constant__ Maps maps, DeferredNorm norm,
                  Epilogue epilogue, int n_tiles) {
  extern __shared__ __align__(128) std::uint8_t ring_memory[];
  __shared__ std::uint64_t full[W::kStages], empty[W::kStages];
  __shared__ float sums[2][kWarps * kTileSums];
  __shared__ float scale[kColumns];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Ring<W::kStages> ring{shared_address(ring_memory), shared_address(full), shared_address(empty)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < W::kStages; ++i) {
#if __CUDA_ARCH__ >= 900
      barrier_init(ring.full + i * 8, 1);
#else
      barrier_init(ring.full + i * 8, kWarp);
#endif
      barrier_init(ring.empty + i * 8, kWarps);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncthreads();
  launch_dependents();
  const int n_pieces = static_cast<int>((w.row_bytes + kPieceBytes - 1) / kPieceBytes);

  if (warp == kWarps) {
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
      for (int piece = 0; piece < n_pieces; ++piece, ring.advance()) {
        barrier_wait(ring.empty_at(), ring.parity ^ 1);
        ask_for_piece<W>(w, maps, epilogue.low(tile), epilogue.high(tile), piece, ring);
      }
    }
    return;
  }

  grid_dependency_wait();
  finish_norm(norm, m, scale);
  const int g = lane / 4, t = lane % 4;
  const __nv_bfloat16* x_row = x + static_cast<std::int64_t>(g < m ? g : 0) * w.n_steps * kStep + t * 8;
  XPiece<W> prefetch[W::kPrefetch];
  int x_piece = 0;  // the next to request
  const auto ask_for_x = [&](XPiece<W>& to) {
    to.load(x_row, g < m, x_piece, w.n_steps);
    x_piece = x_piece + 1 == n_pieces ? 0 : x_piece + 1;
  };
#pragma unroll
  for (int i = 0; i < W::kPrefetch; ++i) ask_for_x(prefetch[i]);

  float c[4] = {};
  int tile = blockIdx.x, piece = 0, buffer = 0;
  while (tile < n_tiles) {
#pragma unroll
    for (int i = 0; i < W::kPrefetch; ++i) {
      if (tile >= n_tiles) break;
      barrier_wait(ring.full_at(), ring.parity);
      take_piece<W>(ring.data + ring.stage * kStageBytes<W>, prefetch[i], piece, w.n_steps, c);
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
          .scales = w.scales,
          .row_bytes = static_cast<std::int64_t>(w.value_bytes_per_row()),
          .scale_row_bytes = w.scale_stride() * 2,
          .n_out = static_cast<std::int32_t>(w.n_out),
          .n_steps = static_cast<std::int32_t>(w.n_in / kStep)};
}

std::int64_t chunk_columns(DType dtype) {
  return dtype == DType::kQ8_0 ? 2 * kStep : is_quantised(dtype) ? 4 * kStep : kStep;
}

template <typename W>
Maps maps_of(const Weights& w) {
  Maps maps{};
  if (!has_hopper_code()) return maps;
  // Lines of 128 bytes are best for memory; rows that are not a multiple of 128 use lines of 64.
  const int line = w.row_bytes % 128 == 0 ? 128 : 64;
  maps.lines = kPieceBytes / line;
  maps.values = tensor_map<3>(w.values, {line / 2, w.row_bytes / line, w.n_out}, {line, w.row_bytes},
                              {line / 2, maps.lines, kHalfRows});
  if constexpr (W::kSteps > 1)
    maps.scales =
        tensor_map<2>(w.scales, {w.scale_row_bytes / 2, w.n_out}, {w.scale_row_bytes}, {W::kScaleBytes / 2, kHalfRows});
  return maps;
}

template <typename W, typename Epilogue>
void run_stream(const char* name, const void* x, int m, const DeviceMatrix& w, const DeferredNorm& norm,
                const Epilogue& epilogue, int n_tiles, const CudaContext& context) {
  constexpr int kShared = W::kStages * kStageBytes<W>;
  static const bool ready = [] {
    cuda_check(cudaFuncSetAttribute(stream_kernel<W, Epilogue>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
               "a matrix-vector product's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  launch(context, name, stream_kernel<W, Epilogue>,
         dim3(static_cast<unsigned>(std::min(n_tiles, kBlocksEach * sm_count()))), dim3(kThreads), kShared,
         static_cast<const __nv_bfloat16*>(x), m, weights_of(w), maps_of<W>(weights_of(w)), norm, epilogue, n_tiles);
}

template <typename Epilogue>
void run(const char* name, const void* x, int m, const DeviceMatrix& w, const DeferredNorm& norm,
         const Epilogue& epilogue, std::int64_t n_tiles, const CudaContext& context) {
  const int tiles = static_cast<int>(n_tiles);
  if (w.dtype == DType::kQ8_0) {
    run_stream<Q8Weights>(name, x, m, w, norm, epilogue, tiles, context);
  } else if (w.dtype == DType::kQ4_0) {
    run_stream<Q4Weights>(name, x, m, w, norm, epilogue, tiles, context);
  } else if (w.dtype == DType::kQ4_1) {
    run_stream<Q41Weights>(name, x, m, w, norm, epilogue, tiles, context);
  } else {
    run_stream<Bf16Weights>(name, x, m, w, norm, epilogue, tiles, context);
  }
}

std::int64_t tiles_of(std::int64_t n, int rows) {
  return (n + rows - 1) / rows;
}

}  // namespace

std::int64_t DeviceMatrix::padded() const {
  const std::int64_t chunk = chunk_columns(dtype);
  return (n_in + chunk - 1) / chunk * chunk;
}
std::size_t DeviceMatrix::value_bytes_per_row() const {
  const auto n = static_cast<std::size_t>(padded());
  return dtype == DType::kQ8_0 ? n : is_quantised(dtype) ? n / 2 : 2 * n;
}
std::int64_t DeviceMatrix::scale_stride() const {
  if (!is_quantised(dtype)) return 0;
  const std::int64_t each = dtype == DType::kQ4_1 ? 2 : 1;
  return (padded() / kStep * each + 7) / 8 * 8;
}
std::size_t DeviceMatrix::bytes() const {
  return static_cast<std::size_t>(n_out) * (value_bytes_per_row() + static_cast<std::size_t>(scale_stride()) * 2);
}

void skinny_gemm_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const DeferredNorm& norm,
                      const SkinnyGemmStore& out, const CudaContext& context) {
  run("skinny_gemm", x, m, w, norm, Store{out, static_cast<int>(w.n_out)}, tiles_of(w.n_out, kTileRows), context);
}

std::int32_t residual_parts(std::int64_t n_out) {
  return static_cast<std::int32_t>(tiles_of(n_out, kTileRows));
}

void skinny_gemm_residual_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const SkinnyGemmResidual& out,
                               const CudaContext& context) {
  run("skinny_gemm_residual", x, m, w, {}, Residual{out, static_cast<int>(w.n_out)}, tiles_of(w.n_out, kTileRows),
      context);
}

void skinny_gemm_swiglu_cuda(const void* x, std::int32_t m, const DeviceMatrix& w, const DeferredNorm& norm, void* out,
                             const CudaContext& context) {
  const int ffn = static_cast<int>(w.n_out / 2);
  run("skinny_gemm_swiglu", x, m, w, norm, Swiglu{static_cast<__nv_bfloat16*>(out), ffn}, tiles_of(ffn, kTileRows / 2),
      context);
}

}  // namespace mneme
