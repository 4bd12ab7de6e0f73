// The skinny GEMM kernel: 1 to 64 rows of x, any weight type.
//
// A thread block computes tiles of rows of w (16 for up to 8 rows of x, else 64) for all rows of x. Weights go through
// a ring of bulk copies in shared memory, which is full before the preceding kernel has ended. A stage of the ring has
// kStageSlabs slabs of 128 columns, and each of eight warps takes one slab of 16 or 32 rows. In turns, a warp that has
// finished its slab refills the stage before (kOneWarpCopies; else all warps do): a ninth warp for that would cost
// every warp a quarter of its registers. x goes from device memory to registers, some steps ahead: the warps that share
// a tile read different columns, so that nothing is gained by way of shared memory. Weights are operand A, unpacked to
// bf16 once for all rows of x; sums of a group of 32 (or 16) columns are scaled in f32.
//
// Matrices with few tiles are split over K too (kernel parameter `splits`): each part stores its sums, and the part
// that arrives last adds them up in order.
#pragma once

#include "src/cuda/common.cuh"
#include "src/ops/gemm/device/silu.cuh"
#include "src/ops/gemm/device/skinny_ring.cuh"
#include "src/ops/gemm/device/weight_format.cuh"

namespace mneme::cuda {

// kTiles: tiles of 8 rows of x.
template <typename F, int kTiles>
struct SkinnyShape {
  static constexpr int kWarps = kSkinnyWarps, kThreads = kSkinnyThreads;
  static constexpr int kRowTiles = kTiles == 1 ? 1 : 2;  // of 16 rows of w, of a warp
  static constexpr int kRowWarps = kTiles == 1 ? 1 : 2;  // warps below each other
  static constexpr int kColumnWarps = kSkinnyWarps / kRowWarps;
  // Slabs of a warp in a stage: two where they are small, because a stage costs a warp some 60 instructions.
  static constexpr int kWarpSlabs = kTiles == 1 && F::kSlabBytes <= 768 ? 2 : 1;
  static constexpr int kStageSlabs = kColumnWarps * kWarpSlabs;
  static constexpr int kRows = 16 * kRowTiles * kRowWarps, kOctets = kRows / 8;
  static constexpr int kPartRows = kRows;  // of a partial sum of squares
  static constexpr int kColumns = 8 * kTiles;
  static constexpr int kRowBytes = kStageSlabs * 256;  // bf16: of a row in a stage
  static constexpr int kOctetBytes = F::kRowMajor ? 8 * kRowBytes : kStageSlabs / F::kSlabs * F::kChunkBytes;
  static constexpr int kStageBytes = kOctets * kOctetBytes;
  static constexpr int kSumStride = kRows + 4;  // floats between columns: four lanes without bank conflicts
  static constexpr int kSumFloats = kColumnWarps * kColumns * kSumStride, kSumBuffers = kTiles == 1 ? 2 : 1;
  // 16-byte loads of x of a lane per slab and stage, and how many are in flight.
  static constexpr int kSlabLoads = 4 * kTiles, kLoads = kSlabLoads * kWarpSlabs,
                       kAhead = kTiles < 3 && kLoads > 8 || kTiles > 4 ? 8 : kLoads;
  static constexpr int kBlocksEach = kTiles == 1 ? 2 : 1;  // thread blocks per SM
  // Before Hopper one thread block an SM needs all warps for its copies: 16 rows of bf16 took 492 us a layer of the 8B
  // shape by one warp and take 213, Q4_K 172 and 146. Two an SM do better by a warp of each: one row of Q8_0 84 us, 110
  // by all (built for 80-virtual, H200).
#if __CUDA_ARCH__ >= 900
  static constexpr bool kOneWarpCopies = true;
#else
  static constexpr bool kOneWarpCopies = kBlocksEach == 2 && !F::kRowMajor;
#endif
};

// c += a b, and c = a b. In the order of the program, as are loads of x: a load that is moved before the last use of
// what it replaces needs another register, and a copy that waits for it.
__device__ __forceinline__ void mma_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                        std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_set(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                        std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// A lane's part of x: eight columns of a step, of row g of each tile. Rows past the last are the last one: their
// results are not stored. Loads do not branch: around a divergent branch nothing is scheduled, and every load would be
// waited for.
template <typename F, int kTiles>
struct InputTiles {
  const __nv_bfloat16* tile[kTiles];  // the lane's row, plus its columns

  __device__ __forceinline__ InputTiles(const SkinnyProblem& p) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      tile[j] = p.x + std::int64_t{min(8 * j + g, p.m - 1)} * p.k + t * (F::kPer16 ? 4 : 8);
  }
  __device__ __forceinline__ void load(int j, int column, uint4& v) const {
    const __nv_bfloat16* at = tile[j] + column;
    if constexpr (F::kPer16) {
      asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
      asm volatile("ld.global.v2.u32 {%0,%1}, [%2+32];" : "=r"(v.z), "=r"(v.w) : "l"(at));
    } else {
      asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    }
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

// One step (32 columns) of a slab for all rows of x. x(i) is load i of the slab, next_x(i) replaces it by a later one.
template <int kStep, typename F, typename S, int kTiles, typename X, typename NextX>
__device__ __forceinline__ void multiply_step(const SlabWeights<F, S>& w, int n_tiles,
                                              float (&c)[S::kRowTiles][kTiles][4], const X& x_of, const NextX& next_x) {
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
    if (kTiles == 8 && j % 2 == 0 && j >= n_tiles) break;
    const uint4& x = x_of(kStep * kTiles + j);
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
    next_x(kStep * kTiles + j);
  }
}

// 1 / sqrt(mean + eps) of each row of x, into scale[]. Call after grid_dependency_wait().
template <int kWarps>
__device__ __forceinline__ void finish_norms(const DeferredNorm& norm, int m, float* scale) {
  const int lane = threadIdx.x % kWarp;
  for (int row = static_cast<int>(threadIdx.x) / kWarp; row < m; row += kWarps) {
    float sum = 0;
    if (norm.sums != nullptr) {
      const float* sums = norm.sums + static_cast<std::int64_t>(row) * norm.n_parts;
#pragma unroll 8
      for (int i = lane; i < norm.n_parts; i += kWarp) sum += __ldcg(sums + i);
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
  for (int i = 0; i < S::kColumnWarps; ++i) v += sums[(i * S::kColumns + column) * S::kSumStride + row];
  return v;
}

// Adds up the parts of a tile in device memory. False: some parts are not complete yet.
template <typename S, typename Value>
__device__ __forceinline__ bool add_parts(const SkinnyProblem& p, int unit, float* sums, int* last,
                                          const Value& value) {
  const int tile = unit / p.splits;
  float* mine = p.partial + std::int64_t{unit} * S::kColumns * S::kRows;
  for (int i = threadIdx.x; i < p.m * S::kRows; i += S::kThreads) __stcg(mine + i, value(i / S::kRows, i % S::kRows));
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const int before = atomicAdd(p.arrived + tile, 1);
    *last = before == p.splits - 1;
    if (*last != 0) p.arrived[tile] = 0;
    __threadfence();
  }
  __syncthreads();
  if (*last == 0) return false;
  const auto* parts =
      reinterpret_cast<const float4*>(p.partial + std::int64_t{tile} * p.splits * S::kColumns * S::kRows);
  constexpr int kFours = S::kRows / 4;
  for (int i = threadIdx.x; i < p.m * kFours; i += S::kThreads) {
    float4 part[kMaxSplits];  // all loads before the first sum
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s)
      part[s] = s < p.splits ? __ldcg(parts + s * S::kColumns * kFours + i) : float4{0, 0, 0, 0};
    float4 v{0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s) v.x += part[s].x, v.y += part[s].y, v.z += part[s].z, v.w += part[s].w;
    *reinterpret_cast<float4*>(sums + i / kFours * S::kSumStride + i % kFours * 4) = v;
  }
  __syncthreads();
  return true;
}

// Stores a row of x of a tile. value(row): of the tile.
template <typename S, typename Value>
__device__ __forceinline__ void store_swiglu(const SkinnyProblem& p, int tile, int column, float scale,
                                             const Value& value) {
  for (int i = threadIdx.x % kWarp; i < S::kRows / 2; i += kWarp) {
    // Rows 0 to 7 of each 16 are gate, 8 to 15 up.
    const int row = tile * (S::kRows / 2) + i, at = i / 8 * 16 + i % 8;
    if (row >= p.half) break;
    const float gate = value(at) * scale, up = value(at + 8) * scale;
    p.swiglu[std::int64_t{column} * p.half + row] = __float2bfloat16_rn(silu(gate) * up);
  }
}
template <typename S, typename Value>
__device__ __forceinline__ void store_values(const SkinnyProblem& p, int tile, int column, float scale,
                                             const Value& value) {
  for (int at = threadIdx.x % kWarp; at < S::kRows; at += kWarp) {
    const int row = tile * S::kRows + at;
    if (row >= p.n_out) break;
    const float bias = p.store.bias == nullptr ? 0.0f : p.store.bias[row];
    const std::int64_t to = column * p.store.stride + row;
    const float y = value(at) * scale + bias;
    if (p.store.bf16) {
      static_cast<__nv_bfloat16*>(p.store.y)[to] = __float2bfloat16_rn(y);
    } else {
      auto* at_y = static_cast<float*>(p.store.y) + to;
      *at_y = p.store.accumulate ? *at_y + y : y;
    }
  }
}
template <typename S, typename Value>
__device__ __forceinline__ void store_residual(const SkinnyProblem& p, int tile, int column, const Value& value) {
  constexpr int kLanes = S::kPartRows < kWarp ? S::kPartRows : kWarp;
  const int lane = threadIdx.x % kWarp;
  float squares = 0;
#pragma unroll
  for (int first = 0; first < S::kRows; first += kWarp) {
    const int at = first + lane, row = tile * S::kRows + at;
    if (at < S::kRows && row < p.n_out) {
      const std::int64_t to = std::int64_t{column} * p.n_out + row;
      const float sum = __ldcg(p.residual.residual + to) + value(at);
      p.residual.residual[to] = sum;
      static_cast<__nv_bfloat16*>(p.residual.x_next)[to] = __float2bfloat16_rn(sum * p.residual.norm_weight[row]);
      squares += sum * sum;
    }
    if (first + kWarp < S::kRows && (first + kWarp) % S::kPartRows != 0) continue;
    squares = warp_sum<kLanes>(squares);
    const int part = row / S::kPartRows;
    if (lane % kLanes == 0 && at < S::kRows && part * S::kPartRows < p.n_out)
      p.residual.sums[column * p.parts + part] = squares;
    squares = 0;
  }
}

// store_residual() of all rows of x, for tiles of 128 rows: a lane has four rows of each of a warp's columns, whose old
// values are all loaded before the first is stored. sums: the tile's.
template <typename S>
__device__ __forceinline__ void store_residual_tile(const SkinnyProblem& p, int tile, const float* sums) {
  static_assert(S::kRows == 4 * kWarp && S::kPartRows == 2 * kWarp);
  constexpr int kEach = S::kColumns / S::kWarps;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = tile * S::kRows + 4 * lane;
  const int left = p.n_out - row;  // rows of the matrix from the lane's first on
  const bool whole = left >= 4 && p.n_out % 4 == 0;
  float old[kEach][4];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int column = warp + i * S::kWarps;
    const float* from = p.residual.residual + std::int64_t{column} * p.n_out + row;
    if (column < p.m && whole) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(from));
      old[i][0] = v.x, old[i][1] = v.y, old[i][2] = v.z, old[i][3] = v.w;
    } else {
#pragma unroll
      for (int r = 0; r < 4; ++r) old[i][r] = column < p.m && r < left ? __ldcg(from + r) : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int column = warp + i * S::kWarps;
    if (column >= p.m) break;
    const std::int64_t to = std::int64_t{column} * p.n_out + row;
    float squares = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (r >= left) break;
      const float sum = old[i][r] + sums[column * S::kSumStride + 4 * lane + r];
      p.residual.residual[to + r] = sum;
      static_cast<__nv_bfloat16*>(p.residual.x_next)[to + r] =
          __float2bfloat16_rn(sum * p.residual.norm_weight[row + r]);
      squares += sum * sum;
    }
    squares = warp_sum<kWarp / 2>(squares);
    if (lane % (kWarp / 2) == 0 && left > 0) p.residual.sums[column * p.parts + row / S::kPartRows] = squares;
  }
}

// Stores a tile. value(column, row): row of x, row of the tile.
template <typename S, typename Value>
__device__ __forceinline__ void store_tile(const SkinnyProblem& p, int tile, const float* scale, const Value& value) {
  for (int column = static_cast<int>(threadIdx.x) / kWarp; column < p.m; column += S::kWarps) {
    const auto of_column = [&](int row) { return value(column, row); };
    if (p.kind == SkinnyOutput::kSwiglu) {
      store_swiglu<S>(p, tile, column, scale[column], of_column);
    } else if (p.kind == SkinnyOutput::kStore) {
      store_values<S>(p, tile, column, scale[column], of_column);
    } else {
      store_residual<S>(p, tile, column, of_column);
    }
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
  const auto value = [&](int column, int row) { return sum_of_warps<S>(sums, column, row); };
  if (p.splits == 1) {
    store_tile<S>(p, tile, scale, value);
  } else if (add_parts<S>(p, unit, sums, last, value)) {
    store_tile<S>(p, tile, scale, [&](int column, int row) { return sums[column * S::kSumStride + row]; });
  }
}

// A slab: its weights are read from shared memory once for all rows of x. left: columns from its first to the row's
// end.
template <typename F, typename S, int kTiles, typename X, typename NextX>
__device__ __forceinline__ void multiply_slab(std::uint32_t stage, int slab, int first_octet, int left, int n_tiles,
                                              float (&c)[S::kRowTiles][kTiles][4], const X& x_of, const NextX& next_x) {
  SlabWeights<F, S> w;
  if (left >= kSlab) {
    w.load(stage, slab, first_octet);
    multiply_step<0, F, S, kTiles>(w, n_tiles, c, x_of, next_x);
    multiply_step<1, F, S, kTiles>(w, n_tiles, c, x_of, next_x);
    multiply_step<2, F, S, kTiles>(w, n_tiles, c, x_of, next_x);
    multiply_step<3, F, S, kTiles>(w, n_tiles, c, x_of, next_x);
    return;
  }
  // Past the row's end x is not there, and the ring may hold an older stage.
  const auto skip = [&](int step) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) next_x(step * kTiles + j);
  };
  if (left > 0) w.load(stage, slab, first_octet);
  left > 0 ? multiply_step<0, F, S, kTiles>(w, n_tiles, c, x_of, next_x) : skip(0);
  left > 32 ? multiply_step<1, F, S, kTiles>(w, n_tiles, c, x_of, next_x) : skip(1);
  left > 64 ? multiply_step<2, F, S, kTiles>(w, n_tiles, c, x_of, next_x) : skip(2);
  skip(3);
}

// Multiplies and stores all units of this thread block. refill() requests the stage before the ring's.
template <typename F, int kTiles, typename Refill>
__device__ __forceinline__ void consume(const SkinnyProblem& p, const InputTiles<F, kTiles>& rows, SkinnyRing& ring,
                                        float* sums, const float* scale, int* last, const Refill& refill) {
  using S = SkinnyShape<F, kTiles>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int slab = warp / S::kRowWarps * S::kWarpSlabs, first_octet = warp % S::kRowWarps * S::kRowTiles * 2;
  const int n_tiles = (p.m + 7) / 8;
  SkinnyWalk walk(p), ahead(p);
  // The warp's first column in the stage `ahead`.
  const auto column_ahead = [&] { return (ahead.piece * S::kStageSlabs + slab) * static_cast<int>(kSlab); };
  int column = column_ahead();
  uint4 x[S::kAhead];
#pragma unroll
  for (int i = 0; i < S::kAhead; ++i) rows.load(i % kTiles, (column < p.k ? column : 0) + i / kTiles * 32, x[i]);

  float c[S::kRowTiles][kTiles][4] = {};
  int buffer = 0;
  while (!walk.done()) {
    ahead.advance();
    // What is loaded for stages and columns that are not there is never multiplied.
    const int next = ahead.done() ? p.k : column_ahead(), here = column < p.k ? column : 0,
              there = next < p.k ? next : 0;
    barrier_wait(ring.full_at(), ring.parity);
#pragma unroll
    for (int part = 0; part < S::kWarpSlabs; ++part) {
      // Load i of the slab, which is replaced by the one kAhead later.
      const auto x_of = [&](int i) -> uint4& { return x[(part * S::kSlabLoads + i) % S::kAhead]; };
      const auto next_x = [&](int i) {
        const int later = part * S::kSlabLoads + i + S::kAhead;
        rows.load(i % kTiles, (later < S::kLoads ? here : there) + later % S::kLoads / kTiles * 32, x_of(i));
      };
      multiply_slab<F, S, kTiles>(ring.data + ring.stage * S::kStageBytes, slab + part, first_octet,
                                  p.k - column - part * static_cast<int>(kSlab), n_tiles, c, x_of, next_x);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty_at());
    refill();
    ring.advance();
    column = next;
    const int unit = walk.unit;
    if (!walk.advance()) continue;
    finish_unit<S, kTiles>(p, unit, c, sums + buffer * S::kSumFloats, scale, last);
    buffer = (buffer + 1) % S::kSumBuffers;
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
  if (threadIdx.x == 0) ring_init(ring.full, ring.empty, p.stages, kSkinnyWarps, S::kOneWarpCopies ? 1 : kSkinnyWarps);
  __syncthreads();
  launch_dependents();

  SkinnyWalk fill(p);
  const int warp = threadIdx.x / kWarp;
  for (int slot = 0; slot < p.stages && !fill.done(); ++slot, fill.advance())
    if (!S::kOneWarpCopies || warp == 0) request_stage<F, S>(p, map, lines, fill, ring, slot);
  int count = 0;
  // The stage before the one that this warp has just finished: the other warps are hardly ever still at it.
  const auto refill = [&] {
    if (count++ == 0 || fill.done()) return;
    if (!S::kOneWarpCopies || warp == count % kSkinnyWarps) {
      barrier_wait(ring.empty + ring.before * 8, ring.parity_before);
      request_stage<F, S>(p, map, lines, fill, ring, ring.before);
    }
    fill.advance();
  };
  grid_dependency_wait();
  finish_norms<S::kWarps>(p.norm, p.m, scale);
  float* sums = reinterpret_cast<float*>(memory + p.stages * S::kStageBytes);
  consume<F, kTiles>(p, InputTiles<F, kTiles>(p), ring, sums, scale, &last, refill);
}

}  // namespace mneme::cuda
