// The skinny GEMM kernel of Hopper and newer GPUs: 1 to 64 rows of x, any quantised weight type.
//
// As skinny_kernel.cuh, but x comes through the ring too, by TMA boxes of 32 columns and all rows: loads of fragments
// from shared memory need no addresses of their own and no registers to be ahead with. Two more things save
// instructions, of which a decode step with weights of four bits has too many otherwise:
//
//   * Codes are multiplied with 128 and their offset still on them. What that adds, -(128 + offset) times the group's sum
//     of x, is where the sums of a group begin, and is computed by the tensor cores from a constant matrix, once for all
//     rows of w. Minima multiply the same sums.
//   * With one row of x, column i of a product's eight is group i of eight: x is zero elsewhere. Scales are applied
//     to eight groups at once, in place of to each.
//
// A stage of the ring: x [steps][rows of x][32] bf16, then the weights' octets.
#pragma once

#include "src/ops/gemm/device/skinny_kernel.cuh"

namespace mneme::cuda {

// kTiles: tiles of 8 rows of x; 0: one row.
template <typename F, int kTiles, int kRowTiles_, int kRowWarps_, int kWarps_, int kBlocks>
struct TmaShape {
  static constexpr int kWarps = kWarps_, kThreads = kWarps * kWarp;
  static constexpr bool kOne = kTiles == 0;
  static constexpr int kXTiles = kOne ? 1 : kTiles;
  static constexpr int kRowTiles = kRowTiles_, kRowWarps = kRowWarps_, kColumnWarps = kWarps / kRowWarps;
  // One row: eight groups, or four where stages would be large.
  static constexpr int kWarpSlabs = kOne && (F::kSlabBytes <= 768 || F::kSlabs == 2) ? 2 : 1;
  static constexpr int kStageSlabs = kColumnWarps * kWarpSlabs, kStageSteps = kStageSlabs * 4;
  static constexpr int kRows = 16 * kRowTiles * kRowWarps, kOctets = kRows / 8;
  static constexpr int kPartRows = kTiles <= 1 ? 16 : 64;  // of a partial sum of squares
  static constexpr int kColumns = kOne ? 1 : 8 * kTiles;
  static constexpr int kOctetBytes = kStageSlabs / F::kSlabs * F::kChunkBytes;
  static constexpr int kWeightBytes = (kOctets * kOctetBytes + 127) / 128 * 128;
  static constexpr int kSumStride = kRows + 4;
  // Warps with other columns leave their sums beside each other where these are small, else add them up in turns.
  static constexpr int kSumParts = kTiles <= 1 ? kColumnWarps : 1, kSumBuffers = kTiles <= 1 ? 2 : 1;
  static constexpr int kSumFloats = kSumParts * kColumns * kSumStride;
  static constexpr int kBlocksEach = kBlocks;
  // With many rows of x, products with the constant matrix cost more than subtractions.
  static constexpr bool kRaw = F::kRaw && (kTiles <= 1 || F::kMinimum);
  static_assert(kStageSlabs % F::kSlabs == 0 && kStageSteps <= 256);
};

struct TmaRing {
  std::uint32_t data, full, empty;
  int stages, x_bytes, stage_bytes, x_expected, stage = 0, before = 0;
  std::uint32_t parity = 0, parity_before = 0;
  __device__ __forceinline__ void advance() {
    before = stage, parity_before = parity;
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

#if __CUDA_ARCH__ >= 900
// Requests the weights of a stage, and says how much x there will be.
template <typename F, typename S>
__device__ __forceinline__ void request_weights(const SkinnyProblem& p, const SkinnyWalk& walk, const TmaRing& ring,
                                                int slot) {
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t full = ring.full + slot * 8;
  const std::int64_t from = std::int64_t{walk.piece} * S::kOctetBytes;
  const int bytes = static_cast<int>(min(std::int64_t{S::kOctetBytes}, p.w_stride - from));
  if (lane == 0) barrier_expect(full, bytes * S::kOctets + ring.x_expected);
  __syncwarp();
  if (lane >= S::kOctets) return;
  const std::uint32_t to = ring.data + slot * ring.stage_bytes + ring.x_bytes + lane * S::kOctetBytes;
  const int octet = min(row_of<S>(p, walk.tile(), lane / 2, lane % 2), p.n_out - 1) / 8;
  copy_weights(to, p.w + octet * p.w_stride + from, bytes, full);
}
template <typename S>
__device__ __forceinline__ void request_x(const CUtensorMap& map, int piece, const TmaRing& ring, int slot) {
  if (threadIdx.x % kWarp != 0) return;
#ifdef EXP
  if (ring.x_expected == 0) return;
#endif
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          ring.data + slot * ring.stage_bytes),
      "l"(&map), "r"(0), "r"(0), "r"(piece * S::kStageSteps), "r"(ring.full + slot * 8)
      : "memory");
}
#endif

// Sums of a tensor-core product, where the compiler may order them.
__device__ __forceinline__ void mma_to(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                                       const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// Operands A of a step, of rows g and g + 8: columns of the first and of the second k16.
template <int kStep, typename S, typename F>
__device__ __forceinline__ void operands(const Codes<F>& low_codes, const Codes<F>& high_codes,
                                         std::uint32_t (&a)[2][4]) {
  std::uint32_t low[4], high[4];
  if constexpr (S::kRaw) {
    low_codes.template unpack_raw<kStep>(low);
    high_codes.template unpack_raw<kStep>(high);
  } else {
    low_codes.template unpack<kStep>(low);
    high_codes.template unpack<kStep>(high);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
    a[h][0] = low[2 * h], a[h][1] = high[2 * h], a[h][2] = low[2 * h + 1], a[h][3] = high[2 * h + 1];
}

// What a step's sums begin with.
template <typename F, typename S>
__device__ __forceinline__ void begin_sums(const uint4& x, float (&sum)[2][4]) {
  constexpr float kNothing[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[0][i] = sum[1][i] = 0;
  if constexpr (S::kRaw) {
    const std::uint32_t zero[4] = {F::kMinusZero, F::kMinusZero, F::kMinusZero, F::kMinusZero};
    mma_to(sum[0], zero, x.x, x.y, kNothing);
    mma_to(sum[1], zero, x.z, x.w, kNothing);
  }
}

// One step (32 columns) for all rows of x, of a warp's row tiles.
template <int kStep, typename F, typename S>
__device__ __forceinline__ void multiply_rows(const Codes<F> (&codes)[2 * S::kRowTiles],
                                              const Scales<F> (&scales)[2 * S::kRowTiles], int n_tiles,
                                              std::uint32_t x_at, const std::uint32_t tile_bytes,
                                              float (&c)[S::kRowTiles][S::kXTiles][4]) {
  std::uint32_t a[S::kRowTiles][2][4];
#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r) operands<kStep, S>(codes[2 * r], codes[2 * r + 1], a[r]);
#pragma unroll
  for (int j = 0; j < S::kXTiles; ++j) {
    if (S::kXTiles == 8 && j % 2 == 0 && j >= n_tiles) break;
    uint4 x;
    if constexpr (F::kPer16) {
      const uint2 low = SharedWords{x_at + j * tile_bytes}.two(), high = SharedWords{x_at + j * tile_bytes + 32}.two();
      x = {low.x, low.y, high.x, high.y};
    } else {
      x = SharedWords{x_at + j * tile_bytes}.four();
    }
    float sum[2][4];
    begin_sums<F, S>(x, sum);
    if constexpr (F::kPer16) {
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r) {
        const Scales<F>&low = scales[2 * r], &high = scales[2 * r + 1];
        float part[2][4];
        mma_to(part[0], a[r][0], x.x, x.y, sum[0]), mma_to(part[1], a[r][1], x.z, x.w, sum[1]);
        add_scaled(c[r][j], part[0], low.template scale<kStep, 0>(), high.template scale<kStep, 0>());
        add_scaled(c[r][j], part[1], low.template scale<kStep, 1>(), high.template scale<kStep, 1>());
        if constexpr (F::kMinimum) {
          add_scaled(c[r][j], sum[0], low.template raw_minimum<kStep, 0>(), high.template raw_minimum<kStep, 0>());
          add_scaled(c[r][j], sum[1], low.template raw_minimum<kStep, 1>(), high.template raw_minimum<kStep, 1>());
        }
      }
    } else {
      float both[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) both[i] = sum[0][i];
      if constexpr (S::kRaw) {
        const std::uint32_t zero[4] = {F::kMinusZero, F::kMinusZero, F::kMinusZero, F::kMinusZero};
        mma_to(both, zero, x.z, x.w, sum[0]);
      }
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r) {
        const Scales<F>&low = scales[2 * r], &high = scales[2 * r + 1];
        float part[4], all[4];
        mma_to(part, a[r][0], x.x, x.y, both);
        mma_to(all, a[r][1], x.z, x.w, part);
        add_scaled(c[r][j], all, low.template scale<kStep>(), high.template scale<kStep>());
        if constexpr (F::kMinimum)
          add_scaled(c[r][j], both, low.template raw_minimum<kStep>(), high.template raw_minimum<kStep>());
      }
    }
  }
}

// A warp's slab, for all rows of x. left: columns from its first to the row's end.
template <typename F, typename S>
__device__ __forceinline__ void multiply_slab_rows(std::uint32_t weights, std::uint32_t x_at, std::uint32_t step_bytes,
                                                   std::uint32_t tile_bytes, int left, int n_tiles,
                                                   float (&c)[S::kRowTiles][S::kXTiles][4], int slab, int first_octet) {
  if (left <= 0) return;
  const int lane = threadIdx.x % kWarp;
  Codes<F> codes[2 * S::kRowTiles];
  Scales<F> scales[2 * S::kRowTiles];
#pragma unroll
  for (int i = 0; i < 2 * S::kRowTiles; ++i) {
    const SharedWords chunk{weights + (first_octet + i) * S::kOctetBytes + slab / F::kSlabs * F::kChunkBytes};
    codes[i].load(chunk.at(slab % F::kSlabs * F::kSlabBytes), lane);
    scales[i].load(chunk.at(F::kSlabs * F::kSlabBytes), slab % F::kSlabs, lane / 4);
  }
  multiply_rows<0, F, S>(codes, scales, n_tiles, x_at, tile_bytes, c);
  if (left > 32) multiply_rows<1, F, S>(codes, scales, n_tiles, x_at + step_bytes, tile_bytes, c);
  if (left > 64) multiply_rows<2, F, S>(codes, scales, n_tiles, x_at + 2 * step_bytes, tile_bytes, c);
  if (left > 96) multiply_rows<3, F, S>(codes, scales, n_tiles, x_at + 3 * step_bytes, tile_bytes, c);
}

// One row of x: two slabs, which are eight groups. Lane 4 g + t has the sums of rows g and g + 8 and of groups 2 t and 2 t
// + 1. zeros: an address of 16 zero bytes.
template <typename F, typename S>
struct OneRow {
  float c[2] = {};

  __device__ __forceinline__ void multiply(std::uint32_t weights, std::uint32_t x, std::uint32_t zeros, int left,
                                           int slab, int first_octet) {
    if (left <= 0) return;
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const auto chunk = [&](int octet, int i) {
      return SharedWords{weights + (first_octet + octet) * S::kOctetBytes + i / F::kSlabs * F::kChunkBytes};
    };
    Scales<F> scales[2];
    constexpr int kGroups = 4 * S::kWarpSlabs;
    const int mine = slab + (S::kWarpSlabs == 2 ? t / 2 : 0);
#pragma unroll
    for (int octet = 0; octet < 2; ++octet) {
      scales[octet].load(chunk(octet, mine).at(F::kSlabs * F::kSlabBytes), mine % F::kSlabs, g);
      scales[octet].take_steps(t % 2);
    }
    const std::uint32_t here = x + (F::kPer16 ? t * 8 : t * 16);
    float begin[2][4], sum[2][4];
    begin_sums<F, S>(read(g < kGroups ? here + g * 64 : zeros), begin);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[h][i] = begin[h][i];
#pragma unroll
    for (int part = 0; part < S::kWarpSlabs; ++part) {
      Codes<F> codes[2];
#pragma unroll
      for (int octet = 0; octet < 2; ++octet)
        codes[octet].load(chunk(octet, slab + part).at((slab + part) % F::kSlabs * F::kSlabBytes), lane);
      const auto at = [&](int step) { return g == 4 * part + step ? here + g * 64 : zeros; };
      add<0>(codes, read(at(0)), sum);
      add<1>(codes, read(at(1)), sum);
      add<2>(codes, read(at(2)), sum);
      add<3>(codes, read(at(3)), sum);
    }
    const bool mine_too = 2 * t < kGroups;
    scale<0>(scales, sum, begin, mine_too && left > 64 * t);
    scale<1>(scales, sum, begin, mine_too && left > 64 * t + 32);
  }

 private:
  static __device__ __forceinline__ uint4 read(std::uint32_t at) {
    if constexpr (!F::kPer16) return SharedWords{at}.four();
    const uint2 low = SharedWords{at}.two(), high = SharedWords{at + 32}.two();
    return {low.x, low.y, high.x, high.y};
  }
  template <int kStep>
  static __device__ __forceinline__ void add(const Codes<F> (&codes)[2], const uint4& x, float (&sum)[2][4]) {
    std::uint32_t a[2][4];
    operands<kStep, S>(codes[0], codes[1], a);
    mma_to(sum[0], a[0], x.x, x.y, sum[0]);
    mma_to(sum[1], a[1], x.z, x.w, sum[1]);
  }
  // Of group 2 t + kStep.
  template <int kStep>
  __device__ __forceinline__ void scale(const Scales<F> (&scales)[2], const float (&sum)[2][4],
                                        const float (&begin)[2][4], bool there) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int i = 2 * row + kStep;
      float v;
      if constexpr (F::kPer16) {
        v = scales[row].template scale<kStep, 0>() * sum[0][i] + scales[row].template scale<kStep, 1>() * sum[1][i];
        if constexpr (F::kMinimum)
          v += scales[row].template raw_minimum<kStep, 0>() * begin[0][i] +
               scales[row].template raw_minimum<kStep, 1>() * begin[1][i];
      } else {
        v = scales[row].template scale<kStep>() * (sum[0][i] + sum[1][i]);
        if constexpr (F::kMinimum) v += scales[row].template raw_minimum<kStep>() * (begin[0][i] + begin[1][i]);
      }
      c[row] += there ? v : 0.0f;  // what is not there may have any scale
    }
  }
};

// Leaves a warp's sums in shared memory.
template <typename S>
__device__ __forceinline__ void put_sums(float (&c)[S::kRowTiles][S::kXTiles][4], float* mine, bool add) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r)
#pragma unroll
    for (int j = 0; j < S::kXTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* to = mine + (8 * j + 2 * t + i % 2) * S::kSumStride + 16 * r + g + i / 2 * 8;
        *to = add ? *to + c[r][j][i] : c[r][j][i];
        c[r][j][i] = 0;
      }
}

template <typename S>
__device__ __forceinline__ float sum_of_parts(const float* sums, int column, int row) {
  float v = 0;
#pragma unroll
  for (int i = 0; i < S::kSumParts; ++i) v += sums[(i * S::kColumns + column) * S::kSumStride + row];
  return v;
}

// Finishes a unit, whose warps' sums are in shared memory.
template <typename S>
__device__ __forceinline__ void finish_sums(const SkinnyProblem& p, int unit, float* sums, const float* scale,
                                            int* last) {
  const int tile = unit / p.splits;
  const auto value = [&](int column, int row) { return sum_of_parts<S>(sums, column, row); };
  if (p.splits == 1) {
    store_tile<S>(p, tile, scale, value);
  } else if (add_parts<S>(p, unit, sums, last, value)) {
    store_tile<S>(p, tile, scale, [&](int column, int row) { return sums[column * S::kSumStride + row]; });
  }
}

template <typename F, int kTiles, int kRowTiles, int kRowWarps, int kWarps, int kBlocks>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks)
    skinny_tma_kernel(const __grid_constant__ SkinnyProblem p, const __grid_constant__ CUtensorMap x_map, int x_rows,
                      int stage_bytes) {
#if __CUDA_ARCH__ >= 900
  using S = TmaShape<F, kTiles, kRowTiles, kRowWarps, kWarps, kBlocks>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ std::uint64_t full[kMaxStages], empty[kMaxStages];
  __shared__ __align__(16) std::uint32_t zeros[16];
  __shared__ float scale[S::kColumns];
  __shared__ int last;
  TmaRing ring{shared_address(memory), shared_address(full), shared_address(empty), p.stages,
               S::kStageSteps * x_rows * 64, stage_bytes, p.upcoming.ranges[1].bytes == -1 ? 0 : S::kStageSteps * x_rows * 64};
  if (threadIdx.x < 16) zeros[threadIdx.x] = 0;
  if (threadIdx.x == 0) ring_init(ring.full, ring.empty, p.stages, kWarps);
  __syncthreads();
  launch_dependents();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  SkinnyWalk fill(p);
  int filled = 0;
  for (; filled < p.stages && !fill.done(); ++filled, fill.advance())
    if (warp == 0) request_weights<F, S>(p, fill, ring, filled);
  if (warp == 0) prefetch_upcoming(p.upcoming);
  grid_dependency_wait();
  SkinnyWalk walk(p);
  if (warp == 0)
    for (int slot = 0; slot < filled; ++slot, walk.advance()) request_x<S>(x_map, walk.piece, ring, slot);
  walk = SkinnyWalk(p);
  finish_norms<S>(p.norm, p.m, scale);
  float* sums = reinterpret_cast<float*>(memory + p.stages * stage_bytes);

  int count = 0;
  // The stage before the one that this warp has just finished: the other warps are hardly ever still at it.
  const auto refill = [&] {
    if (count++ == 0 || fill.done()) return;
    if (warp == count % kWarps) {
      barrier_wait(ring.empty + ring.before * 8, ring.parity_before);
      request_weights<F, S>(p, fill, ring, ring.before);
      request_x<S>(x_map, fill.piece, ring, ring.before);
    }
    fill.advance();
  };

  const int slab = warp / S::kRowWarps * S::kWarpSlabs, first_octet = warp % S::kRowWarps * S::kRowTiles * 2;
  const int column_warp = warp / S::kRowWarps, row_warp = warp % S::kRowWarps;
  const int n_tiles = (p.m + 7) / 8;
  const std::uint32_t step_bytes = x_rows * 64;
  // Rows past the last are the last one: their results are not stored.
  const std::uint32_t x_lane = slab * 4 * step_bytes + min(lane / 4, x_rows - 1) * 64 + lane % 4 * (F::kPer16 ? 8 : 16);
  OneRow<F, S> one;
  float c[S::kRowTiles][S::kXTiles][4] = {};
  int buffer = 0;
  while (!walk.done()) {
    const int left = p.k - (walk.piece * S::kStageSlabs + slab) * static_cast<int>(kSlab);
    barrier_wait(ring.full + ring.stage * 8, ring.parity);
    const std::uint32_t at = ring.data + ring.stage * stage_bytes;
    if constexpr (S::kOne) {
      one.multiply(at + ring.x_bytes, at + slab * 4 * 64, shared_address(zeros), left, slab, first_octet);
    } else {
      multiply_slab_rows<F, S>(at + ring.x_bytes, at + x_lane, step_bytes, 512, left, n_tiles, c, slab, first_octet);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty + ring.stage * 8);
    refill();
    ring.advance();
    const int unit = walk.unit;
    if (!walk.advance()) continue;

    float* out = sums + buffer * S::kSumFloats;
    if (S::kSumBuffers == 1 || p.splits > 1) __syncthreads();  // the tile before is stored
    if constexpr (S::kOne) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        one.c[i] += __shfl_xor_sync(~0u, one.c[i], 1);
        one.c[i] += __shfl_xor_sync(~0u, one.c[i], 2);
        if (lane % 4 == 0) out[column_warp * S::kSumStride + row_warp * 16 + lane / 4 + 8 * i] = one.c[i];
        one.c[i] = 0;
      }
    } else if constexpr (S::kSumParts > 1) {
      put_sums<S>(c, out + column_warp * S::kColumns * S::kSumStride + row_warp * S::kRowTiles * 16, false);
    } else {
#pragma unroll 1
      for (int turn = 0; turn < S::kColumnWarps; ++turn) {
        if (turn > 0) __syncthreads();
        if (turn == column_warp) put_sums<S>(c, out + row_warp * S::kRowTiles * 16, turn > 0);
      }
    }
    __syncthreads();
    finish_sums<S>(p, unit, out, scale, &last);
    buffer = (buffer + 1) % S::kSumBuffers;
  }
#endif
}

}  // namespace mneme::cuda
