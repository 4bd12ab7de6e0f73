// The skinny GEMM kernel: 1 to 64 rows of x, any weight type.
//
// A thread block computes tiles of rows of w (16 for up to 8 rows of x, else 64) for all rows of x. Weights go through a
// ring of bulk copies in shared memory, which is full before the preceding kernel has ended. A stage of the ring has
// kSlabsPerStage slabs of 128 columns, and each of eight warps takes one slab of 16 or 32 rows. In turns, a warp that has
// finished its slab refills the stage before: a ninth warp for that would cost every warp a quarter of its registers. x goes from device memory to registers, some steps ahead: the warps that share a
// tile read different columns, so that nothing is gained by way of shared memory. Weights are operand A, unpacked to bf16
// once for all rows of x; sums of a group of 32 (or 16) columns are scaled in f32.
//
// Matrices with few tiles are split over K too (kernel parameter `splits`): each part stores its sums, and the part that
// arrives last adds them up in order.
#pragma once

#include "src/cuda/common.cuh"
#include "src/cuda/tensor_map.cuh"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"
#include "src/ops/gemm/device/weight_format.cuh"

namespace mneme::cuda {

constexpr int kSkinnyWarps = 8, kSkinnyThreads = kSkinnyWarps * kWarp;
constexpr int kMaxStages = 8;

enum class SkinnyOutput : int { kStore, kResidual, kSwiglu };

struct SkinnyProblem {
  const __nv_bfloat16* x;
  const std::byte* w;
  std::int64_t w_stride;  // bytes between octets (bf16: between rows)
  int m, k, n_out;
  int pieces, splits;     // stages per row of tiles; parts of K
  int units;              // tiles * splits
  int stages;
  SkinnyOutput kind;
  int half;  // kSwiglu: the first row of `up`
  DeferredNorm norm;
  SkinnyGemmStore store;
  SkinnyGemmResidual residual;
  __nv_bfloat16* swiglu;
  float* partial;         // [units][kColumns][kRows], splits > 1
  std::int32_t* arrived;  // [tiles], zero between launches
};

// kTiles: tiles of 8 rows of x.
template <typename F, int kTiles>
struct SkinnyShape {
  static constexpr int kRowTiles = kTiles == 1 ? 1 : 2;   // of 16 rows of w, of a warp
  static constexpr int kRowWarps = kTiles == 1 ? 1 : 2;   // warps below each other
  static constexpr int kSlabsPerStage = kSkinnyWarps / kRowWarps;
  static constexpr int kRows = 16 * kRowTiles * kRowWarps, kOctets = kRows / 8;
  static constexpr int kColumns = 8 * kTiles;
  static constexpr int kRowBytes = kSlabsPerStage * 256;  // bf16: of a row in a stage
  static constexpr int kOctetBytes =
      F::kRowMajor ? 8 * kRowBytes : kSlabsPerStage / F::kSlabs * F::kChunkBytes;
  static constexpr int kStageBytes = kOctets * kOctetBytes;
  static constexpr int kSumStride = kRows + 4;  // floats between columns: four lanes without bank conflicts
  static constexpr int kSumFloats = kSlabsPerStage * kColumns * kSumStride, kSumBuffers = kTiles == 1 ? 2 : 1;
  // 16-byte loads of x per stage, and how many are in flight.
  static constexpr int kLoads = 4 * kTiles, kAhead = 8;
  static constexpr int kUnroll = kAhead > kLoads ? kAhead / kLoads : 1;
  static constexpr int kStagesAhead = (kAhead + kLoads - 1) / kLoads;
  static constexpr int kBlocksEach = kTiles <= 2 ? 2 : 1;  // thread blocks per SM
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
    const int part = unit % splits;
    piece = pieces * part / splits, end = pieces * (part + 1) / splits;
  }
  __device__ __forceinline__ bool done() const { return unit >= units; }
  __device__ __forceinline__ int tile() const { return unit / splits; }
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

// Requests stage `slot` of the ring: a copy per octet, issued by a lane each. bf16: boxes of rows on Hopper, rows elsewhere.
template <typename F, typename S>
__device__ __forceinline__ void request_stage(const SkinnyProblem& p, const CUtensorMap& map, int lines,
                                              const SkinnyWalk& walk, const SkinnyRing& ring, int slot) {
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t stage = ring.data + slot * S::kStageBytes, full = ring.full + slot * 8;
  const auto row_at = [&](int octet) { return row_of<S>(p, walk.tile(), octet / 2, octet % 2); };
  const std::int64_t row_bytes = F::kRowMajor ? std::int64_t{p.k} * 2 : p.w_stride;
  constexpr int kPieceBytes = F::kRowMajor ? S::kRowBytes : S::kOctetBytes;
  const std::int64_t from = std::int64_t{walk.piece} * kPieceBytes;
  const int bytes = static_cast<int>(min(std::int64_t{kPieceBytes}, row_bytes - from));
#if __CUDA_ARCH__ >= 900
  if (lane == 0) barrier_expect(full, F::kRowMajor ? S::kStageBytes : bytes * S::kOctets);
  __syncwarp();
  if (lane >= S::kOctets) return;
  const std::uint32_t to = stage + lane * S::kOctetBytes;
  if constexpr (F::kRowMajor) {
    copy_box(to, map, 0, walk.piece * lines, row_at(lane), full);
  } else {
    const int octet = min(row_at(lane), p.n_out - 1) / 8;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            to),
        "l"(p.w + octet * p.w_stride + from), "r"(bytes), "r"(full), "l"(read_once())
        : "memory");
  }
#else
  for (int octet = 0; octet < S::kOctets; ++octet) {
    const std::uint32_t to = stage + octet * S::kOctetBytes;
    if constexpr (F::kRowMajor) {
      for (int g = 0; g < 8; ++g) {
        const std::int64_t row = min(row_at(octet) + g, p.n_out - 1);
        for (int at = lane * 16; at < bytes; at += kWarp * 16)
          copy_async(to + g * S::kRowBytes + at, p.w + row * p.w_stride + from + at);
      }
    } else {
      const std::byte* source = p.w + min(row_at(octet), p.n_out - 1) / 8 * p.w_stride + from;
      for (int at = lane * 16; at < bytes; at += kWarp * 16) copy_async(to + at, source + at);
    }
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
#endif
}

// c += a b, and c = a b.
__device__ __forceinline__ void mma_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_set(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// A warp's part of x: the four columns pairs that a lane multiplies in a step, of row g of a tile.
template <typename F>
struct XRows {
  const __nv_bfloat16* x;  // the lane's row of the first tile, plus its columns
  int m, k, g;

  __device__ __forceinline__ XRows(const SkinnyProblem& p) : m(p.m), k(p.k) {
    const int lane = threadIdx.x % kWarp, t = lane % 4;
    g = lane / 4;
    x = p.x + std::int64_t{g} * k + t * (F::kPer16 ? 4 : 8);
  }
  __device__ __forceinline__ uint4 load(int column, int tile) const {
    uint4 v{0, 0, 0, 0};
    if (tile * 8 + g >= m || column >= k) return v;
    const __nv_bfloat16* at = x + std::int64_t{tile} * 8 * k + column;
    if constexpr (F::kPer16) {
      const uint2 a = *reinterpret_cast<const uint2*>(at), b = *reinterpret_cast<const uint2*>(at + 16);
      v = {a.x, a.y, b.x, b.y};
    } else {
      v = *reinterpret_cast<const uint4*>(at);
    }
    return v;
  }
};

// A warp's slab of a stage: codes and scales of its octets.
template <typename F, typename S>
struct SlabWeights {
  static constexpr int kOctets = 2 * S::kRowTiles;
  Codes<F> codes[kOctets];
  Scales<F> scales[kOctets];

  __device__ __forceinline__ void load(std::uint32_t stage, int slab, int first_octet) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kOctets; ++i) {
      const SharedWords chunk{stage + (first_octet + i) * S::kOctetBytes + slab / F::kSlabs * F::kChunkBytes};
      codes[i].load(chunk.at(slab % F::kSlabs * F::kSlabBytes), lane);
      scales[i].load(chunk.at(F::kSlabs * F::kSlabBytes), slab % F::kSlabs, lane / 4);
    }
  }
  template <int kStep>
  __device__ __forceinline__ void unpack(int octet, std::uint32_t (&out)[4]) const {
    codes[octet].template unpack<kStep>(out);
  }
};
template <typename S>
struct SlabWeights<Bf16Format, S> {
  std::uint32_t address;
  __device__ __forceinline__ void load(std::uint32_t stage, int slab, int first_octet) {
    const int lane = threadIdx.x % kWarp;
    address = stage + first_octet * S::kOctetBytes + lane / 4 * S::kRowBytes + slab * 256 + lane % 4 * 16;
  }
  template <int kStep>
  __device__ __forceinline__ void unpack(int octet, std::uint32_t (&out)[4]) const {
    put_four(out, SharedWords{address}.at(octet * S::kOctetBytes + kStep * 64).four());
  }
};

// c += scale * part (+ minimum * sum of x): rows g and g + 8.
__device__ __forceinline__ void add_scaled(float (&c)[4], const float (&part)[4], float low, float high) {
  c[0] += low * part[0], c[1] += low * part[1], c[2] += high * part[2], c[3] += high * part[3];
}

// One step (32 columns) of a slab for all rows of x. next_x(i) takes load i of the stage and requests a later one.
// left: columns from the slab's first to the row's end; quantised rows are padded.
template <int kStep, typename F, typename S, int kTiles, typename NextX>
__device__ __forceinline__ void multiply_step(const SlabWeights<F, S>& w, int left, int n_tiles,
                                              float (&c)[S::kRowTiles][kTiles][4], const NextX& next_x) {
  if (F::kRowMajor && kStep * 32 >= left) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) next_x(kStep * kTiles + j);
    return;
  }
  std::uint32_t a[S::kRowTiles][2][4];
#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r) {
    std::uint32_t low[4], high[4];
    w.template unpack<kStep>(2 * r, low);
    w.template unpack<kStep>(2 * r + 1, high);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      a[r][h][0] = low[2 * h], a[r][h][1] = high[2 * h], a[r][h][2] = low[2 * h + 1], a[r][h][3] = high[2 * h + 1];
  }
  const std::uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    if (kTiles > 1 && j >= n_tiles) break;
    const uint4 x = next_x(kStep * kTiles + j);
    if constexpr (F::kRowMajor) {
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r) mma_add(c[r][j], a[r][0], x.x, x.y), mma_add(c[r][j], a[r][1], x.z, x.w);
    } else if constexpr (F::kPer16) {
      float sum[2][4];
      if constexpr (F::kMinimum) mma_set(sum[0], ones, x.x, x.y), mma_set(sum[1], ones, x.z, x.w);
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r) {
        const Scales<F>&low = w.scales[2 * r], &high = w.scales[2 * r + 1];
        float part[2][4];
        mma_set(part[0], a[r][0], x.x, x.y), mma_set(part[1], a[r][1], x.z, x.w);
        add_scaled(c[r][j], part[0], low.template scale<kStep, 0>(), high.template scale<kStep, 0>());
        add_scaled(c[r][j], part[1], low.template scale<kStep, 1>(), high.template scale<kStep, 1>());
        if constexpr (F::kMinimum) {
          add_scaled(c[r][j], sum[0], low.template minimum<kStep, 0>(), high.template minimum<kStep, 0>());
          add_scaled(c[r][j], sum[1], low.template minimum<kStep, 1>(), high.template minimum<kStep, 1>());
        }
      }
    } else {
      float sum[4];
      if constexpr (F::kMinimum) mma_set(sum, ones, x.x, x.y), mma_add(sum, ones, x.z, x.w);
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r) {
        const Scales<F>&low = w.scales[2 * r], &high = w.scales[2 * r + 1];
        float part[4];
        mma_set(part, a[r][0], x.x, x.y), mma_add(part, a[r][1], x.z, x.w);
        add_scaled(c[r][j], part, low.template scale<kStep>(), high.template scale<kStep>());
        if constexpr (F::kMinimum)
          add_scaled(c[r][j], sum, low.template minimum<kStep>(), high.template minimum<kStep>());
      }
    }
  }
}

// 1 / sqrt(mean + eps) of each row of x, into scale[]. Call after grid_dependency_wait().
__device__ __forceinline__ void finish_norms(const DeferredNorm& norm, int m, float* scale) {
  const int lane = threadIdx.x % kWarp;
  for (int row = static_cast<int>(threadIdx.x) / kWarp; row < m; row += kSkinnyWarps) {
    float sum = 0;
    if (norm.sums != nullptr) {
      for (int i = lane; i < norm.n_parts; i += kWarp) sum += __ldcg(norm.sums + i * kSkinnyRows + row);
      sum = warp_sum(sum);
    }
    if (lane == 0) scale[row] = norm.sums == nullptr ? 1.0f : rsqrtf(sum / static_cast<float>(norm.n) + norm.eps);
  }
}

// The sum over a tile's warps, in order.
template <typename S>
__device__ __forceinline__ float sum_of_warps(const float* sums, int column, int row) {
  float v = 0;
#pragma unroll
  for (int i = 0; i < S::kSlabsPerStage; ++i) v += sums[(i * S::kColumns + column) * S::kSumStride + row];
  return v;
}

// Adds up what the parts of a tile have left in device memory. False: other parts are still to come.
template <typename S>
__device__ __forceinline__ bool add_parts(const SkinnyProblem& p, int unit, float* sums, int* last) {
  const int tile = unit / p.splits;
  float* mine = p.partial + std::int64_t{unit} * S::kColumns * S::kRows;
  for (int i = threadIdx.x; i < p.m * S::kRows; i += kSkinnyThreads)
    __stcg(mine + i, sum_of_warps<S>(sums, i / S::kRows, i % S::kRows));
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const int before = atomicAdd(p.arrived + tile, 1);
    *last = before == p.splits - 1;
    if (*last != 0) p.arrived[tile] = 0;
  }
  __syncthreads();
  if (*last == 0) return false;
  __threadfence();
  const float* parts = p.partial + std::int64_t{tile} * p.splits * S::kColumns * S::kRows;
  for (int i = threadIdx.x; i < p.m * S::kRows; i += kSkinnyThreads) {
    float v = 0;
    for (int s = 0; s < p.splits; ++s) v += __ldcg(parts + std::int64_t{s} * S::kColumns * S::kRows + i);
    sums[i / S::kRows * S::kSumStride + i % S::kRows] = v;
  }
  __syncthreads();
  return true;
}

// Stores a tile. value(column, row): row of x, row of the tile.
template <typename S, typename Value>
__device__ __forceinline__ void store_tile(const SkinnyProblem& p, int tile, const float* scale, const Value& value) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int column = warp; column < p.m; column += kSkinnyWarps) {
    float squares = 0;
    if (p.kind == SkinnyOutput::kSwiglu) {
      // Rows 0 to 7 of each 16 are gate, 8 to 15 up.
      const int row = tile * (S::kRows / 2) + lane, at = lane / 8 * 16 + lane % 8;
      if (lane >= S::kRows / 2 || row >= p.half) continue;
      const float gate = value(column, at) * scale[column], up = value(column, at + 8) * scale[column];
      p.swiglu[std::int64_t{column} * p.half + row] = __float2bfloat16_rn(gate / (1.0f + __expf(-gate)) * up);
      continue;
    }
    for (int at = lane; at < S::kRows; at += kWarp) {
      const int row = tile * S::kRows + at;
      if (row >= p.n_out) break;
      const float v = value(column, at);
      if (p.kind == SkinnyOutput::kStore) {
        const float bias = p.store.bias == nullptr ? 0.0f : p.store.bias[row];
        const std::int64_t to = column * p.store.stride + row;
        const float y = v * scale[column] + bias;
        if (p.store.bf16) {
          static_cast<__nv_bfloat16*>(p.store.y)[to] = __float2bfloat16_rn(y);
        } else {
          auto* at_y = static_cast<float*>(p.store.y) + to;
          *at_y = p.store.accumulate ? *at_y + y : y;
        }
      } else {
        const std::int64_t to = std::int64_t{column} * p.n_out + row;
        const float sum = __ldcg(p.residual.residual + to) + v;
        p.residual.residual[to] = sum;
        static_cast<__nv_bfloat16*>(p.residual.x_next)[to] = __float2bfloat16_rn(sum * p.residual.norm_weight[row]);
        squares += sum * sum;
      }
    }
    if (p.kind != SkinnyOutput::kResidual) continue;
    squares = warp_sum(squares);
    if (lane == 0) p.residual.sums[tile * kSkinnyRows + column] = squares;
  }
}

// Leaves a warp's sums in shared memory, and finishes the tile with the others.
template <typename S, int kTiles>
__device__ __forceinline__ void finish_unit(const SkinnyProblem& p, int unit, float (&c)[S::kRowTiles][kTiles][4],
                                            float* sums, const float* scale, int* last) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  if (S::kSumBuffers == 1 || p.splits > 1) __syncthreads();  // the tile before is stored
  float* mine = sums + warp / S::kRowWarps * S::kColumns * S::kSumStride + warp % S::kRowWarps * S::kRowTiles * 16 + g;
#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r)
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float* to = mine + (8 * j + 2 * t) * S::kSumStride + 16 * r;
      to[0] = c[r][j][0], to[S::kSumStride] = c[r][j][1];
      to[8] = c[r][j][2], to[S::kSumStride + 8] = c[r][j][3];
      c[r][j][0] = c[r][j][1] = c[r][j][2] = c[r][j][3] = 0;
    }
  __syncthreads();
  const int tile = unit / p.splits;
  if (p.splits == 1) {
    store_tile<S>(p, tile, scale, [&](int column, int row) { return sum_of_warps<S>(sums, column, row); });
  } else if (add_parts<S>(p, unit, sums, last)) {
    store_tile<S>(p, tile, scale, [&](int column, int row) { return sums[column * S::kSumStride + row]; });
  }
}

// Multiplies and stores all units of this thread block. refill() requests the stage before the ring's;
template <typename F, int kTiles, typename Refill>
__device__ __forceinline__ void consume(const SkinnyProblem& p, SkinnyRing& ring, float* sums, const float* scale,
                                        int* last, const Refill& refill) {
  using S = SkinnyShape<F, kTiles>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int slab = warp / S::kRowWarps, first_octet = warp % S::kRowWarps * S::kRowTiles * 2;
  const int n_tiles = (p.m + 7) / 8;
  const XRows<F> rows(p);
  SkinnyWalk walk(p), ahead(p);
  uint4 x[S::kAhead];
  int columns[S::kStagesAhead + 1];  // the first column of this warp in this stage and the next ones; k: none
  const auto next_column = [&] {
    if (ahead.done()) return p.k;
    const int column = (ahead.piece * S::kSlabsPerStage + slab) * static_cast<int>(kSlab);
    ahead.advance();
    return column;
  };
#pragma unroll
  for (int i = 0; i <= S::kStagesAhead; ++i) columns[i] = next_column();
#pragma unroll
  for (int i = 0; i < S::kAhead; ++i)
    x[i] = rows.load(columns[i / S::kLoads] + i % S::kLoads / kTiles * 32, i % kTiles);

  float c[S::kRowTiles][kTiles][4] = {};
  int buffer = 0;
  while (!walk.done()) {
#pragma unroll
    for (int u = 0; u < S::kUnroll; ++u) {
      if (walk.done()) break;
      barrier_wait(ring.full_at(), ring.parity);
      // Load i of this stage from the registers, and the one kAhead later into them.
      const auto next_x = [&](int i) {
        const int at = (u * S::kLoads + i) % S::kAhead, later = i + S::kAhead;
        const uint4 v = x[at];
        x[at] = rows.load(columns[later / S::kLoads] + later % S::kLoads / kTiles * 32, later % kTiles);
        return v;
      };
      // Past the end of the row the ring holds an older stage.
      if (columns[0] < p.k) {
        SlabWeights<F, S> w;
        w.load(ring.data + ring.stage * S::kStageBytes, slab, first_octet);
        multiply_step<0, F, S, kTiles>(w, p.k - columns[0], n_tiles, c, next_x);
        multiply_step<1, F, S, kTiles>(w, p.k - columns[0], n_tiles, c, next_x);
        multiply_step<2, F, S, kTiles>(w, p.k - columns[0], n_tiles, c, next_x);
        multiply_step<3, F, S, kTiles>(w, p.k - columns[0], n_tiles, c, next_x);
      } else {
#pragma unroll
        for (int i = 0; i < S::kLoads; ++i) next_x(i);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.empty_at());
      refill();
      ring.advance();
#pragma unroll
      for (int i = 0; i < S::kStagesAhead; ++i) columns[i] = columns[i + 1];
      columns[S::kStagesAhead] = next_column();
      const int unit = walk.unit;
      if (!walk.advance()) continue;
      finish_unit<S, kTiles>(p, unit, c, sums + buffer * S::kSumFloats, scale, last);
      buffer = (buffer + 1) % S::kSumBuffers;
    }
  }
}

template <typename F, int kTiles>
__global__ void __launch_bounds__(kSkinnyThreads, SkinnyShape<F, kTiles>::kBlocksEach)
    skinny_kernel(const __grid_constant__ SkinnyProblem p, const __grid_constant__ CUtensorMap map, int lines) {
  using S = SkinnyShape<F, kTiles>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ std::uint64_t full[kMaxStages], empty[kMaxStages];
  __shared__ float scale[S::kColumns];
  __shared__ int last;
  SkinnyRing ring{shared_address(memory), shared_address(full), shared_address(empty), p.stages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
#if __CUDA_ARCH__ >= 900
      barrier_init(ring.full + i * 8, 1);
#else
      barrier_init(ring.full + i * 8, kWarp);
#endif
      barrier_init(ring.empty + i * 8, kSkinnyWarps);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncthreads();
  launch_dependents();

  SkinnyWalk fill(p);
  const int warp = threadIdx.x / kWarp;
  for (int slot = 0; slot < p.stages && !fill.done(); ++slot, fill.advance())
    if (warp == 0) request_stage<F, S>(p, map, lines, fill, ring, slot);
  int count = 0;
  // The stage before the one that this warp has just finished: the other warps are hardly ever still at it.
  const auto refill = [&] {
    if (count++ == 0 || fill.done()) return;
    if (warp == count % kSkinnyWarps) {
      barrier_wait(ring.empty + ring.before * 8, ring.parity_before);
      request_stage<F, S>(p, map, lines, fill, ring, ring.before);
    }
    fill.advance();
  };
  grid_dependency_wait();
  finish_norms(p.norm, p.m, scale);
  float* sums = reinterpret_cast<float*>(memory + p.stages * S::kStageBytes);
  consume<F, kTiles>(p, ring, sums, scale, &last, refill);
}

}  // namespace mneme::cuda
