// The skinny GEMM kernel of Hopper and newer GPUs for 1 row of x and for 25 to 32, any quantised weight type.
//
// As skinny_kernel.cuh, but x comes through the ring too, by TMA boxes of 32 columns and all rows: fragments are loaded
// from shared memory, without addresses of their own and without registers to be ahead with. Two more things save
// instructions, of which a step of one row with weights of four bits has too many otherwise:
//
//   * Codes are multiplied with 128 and their offset still on them. A group's sums begin with -(128 + offset) times its
//     sum of x, which tensor cores compute from a constant matrix. Minima multiply that sum too.
//   * With one row of x, column i of a product's eight is group i of eight: x is zero elsewhere. Scales are applied to
//     eight groups at once, in place of to each.
//
// A stage of the ring: x [steps][rows of x][32] bf16, then the weights' octets.
#pragma once

#include <type_traits>

#include "src/ops/gemm/device/skinny_kernel.cuh"

namespace mneme::cuda {

// kTiles: tiles of 8 rows of x; 0: one row. kRowTiles: of 16 rows of w, of a warp; kRowWarps: warps below each other.
template <typename F, int kTiles, int kRowTiles_, int kRowWarps_, int kWarps_, int kBlocks>
struct TmaShape {
  static constexpr bool kOne = kTiles == 0;
  static constexpr int kWarps = kWarps_, kThreads = kWarps * kWarp;
  static constexpr int kXTiles = kOne ? 1 : kTiles, kColumns = kOne ? 1 : 8 * kTiles;
  static constexpr int kRowTiles = kRowTiles_, kRowWarps = kRowWarps_, kColumnWarps = kWarps / kRowWarps;
  // Slabs of a warp in a stage. One row: eight groups, or four where stages would be large.
  static constexpr int kWarpSlabs = kOne && (F::kSlabBytes <= 768 || F::kSlabs == 2) ? 2 : 1;
  static constexpr int kStageSlabs = kColumnWarps * kWarpSlabs, kStageSteps = kStageSlabs * 4;
  static constexpr int kRows = 16 * kRowTiles * kRowWarps, kOctets = kRows / 8;
  static constexpr int kPartRows = kOne ? 16 : 64;  // of a partial sum of squares
  static constexpr int kOctetBytes = kStageSlabs / F::kSlabs * F::kChunkBytes;
  static constexpr int kStepBytes = kColumns * kStepColumns * 2, kXBytes = kStageSteps * kStepBytes;
  static constexpr int kStageBytes = (kXBytes + kOctets * kOctetBytes + 127) / 128 * 128;
  // Warps with other columns leave their sums beside each other where these are small, else add them up in turns.
  static constexpr int kSumParts = kOne ? kColumnWarps : 1, kSumBuffers = kOne ? 2 : 1;
  static constexpr int kSumStride = kRows + 4, kSumFloats = kSumParts * kColumns * kSumStride;
  // With many rows of x, products with the constant matrix cost more than subtractions.
  static constexpr bool kRaw = F::kRaw && (kOne || F::kMinimum);
  static_assert(kStageSlabs % F::kSlabs == 0 && kStageSteps <= 256 && kOctets <= kWarp);
};

#if __CUDA_ARCH__ >= 900
// Requests the weights of a stage, and says how much x there will be.
template <typename F, typename S>
__device__ __forceinline__ void request_weights(const SkinnyProblem& p, const SkinnyWalk& walk, const SkinnyRing& ring,
                                                int slot) {
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t full = ring.full + slot * 8;
  const std::int64_t from = std::int64_t{walk.piece} * S::kOctetBytes;
  const int bytes = static_cast<int>(min(std::int64_t{S::kOctetBytes}, p.w_stride - from));
  if (lane == 0) barrier_expect(full, bytes * S::kOctets + S::kXBytes);
  __syncwarp();
  if (lane >= S::kOctets) return;
  const std::uint32_t to = ring.data + slot * S::kStageBytes + S::kXBytes + lane * S::kOctetBytes;
  const int octet = min(row_of<S>(p, walk.tile(), lane / 2, lane % 2), p.n_out - 1) / 8;
  copy_bulk_once(to, p.w + octet * p.w_stride + from, bytes, full);
}

// x, unlike weights, stays in the L2 cache.
template <typename S>
__device__ __forceinline__ void request_x(const CUtensorMap& map, int piece, const SkinnyRing& ring, int slot) {
  if (threadIdx.x % kWarp != 0) return;
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(ring.data + slot * S::kStageBytes),
      "l"(&map), "r"(0), "r"(0), "r"(piece * S::kStageSteps), "r"(ring.full + slot * 8)
      : "memory");
}
#endif

// d = a b + c, where the compiler may order it.
__device__ __forceinline__ void mma_to(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                                       const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// A lane's columns of a step of x. at: of its row, from column 8 t on, or 4 t where scales are per 16.
template <typename F>
__device__ __forceinline__ uint4 columns_at(std::uint32_t at) {
  if constexpr (!F::kPer16) return SharedWords{at}.four();
  const uint2 low = SharedWords{at}.two(), high = SharedWords{at + 32}.two();
  return {low.x, low.y, high.x, high.y};
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

// What the sums of the first and of the second k16 begin with.
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

// Many rows of x: a warp's row tiles for all of them.
template <typename F, typename S>
struct TileSums {
  float c[S::kRowTiles][S::kXTiles][4] = {};

  // A slab of a stage, `left` columns before the row's end. weights: of the warp's octets; x_at: of the lane's columns.
  __device__ __forceinline__ void multiply(std::uint32_t weights, std::uint32_t x_at, int left, int slab) {
    if (left <= 0) return;
    const int lane = threadIdx.x % kWarp;
    Codes<F> codes[2 * S::kRowTiles];
    Scales<F> scales[2 * S::kRowTiles];
#pragma unroll
    for (int i = 0; i < 2 * S::kRowTiles; ++i) {
      const SharedWords chunk{weights + i * S::kOctetBytes + slab / F::kSlabs * F::kChunkBytes};
      codes[i].load(chunk.at(slab % F::kSlabs * F::kSlabBytes), lane);
      scales[i].load(chunk.at(F::kSlabs * F::kSlabBytes), slab % F::kSlabs, lane / 4);
    }
    step<0>(codes, scales, x_at);
    if (left > 32) step<1>(codes, scales, x_at + S::kStepBytes);
    if (left > 64) step<2>(codes, scales, x_at + 2 * S::kStepBytes);
    if (left > 96) step<3>(codes, scales, x_at + 3 * S::kStepBytes);
  }

  // Adds the warp's sums to those in shared memory, or replaces them, and begins again. mine: of its first row.
  __device__ __forceinline__ void put(float* mine, bool add) {
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

 private:
  template <int kStep>
  __device__ __forceinline__ void step(const Codes<F> (&codes)[2 * S::kRowTiles],
                                       const Scales<F> (&scales)[2 * S::kRowTiles], std::uint32_t x_at) {
    std::uint32_t a[S::kRowTiles][2][4];
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) operands<kStep, S>(codes[2 * r], codes[2 * r + 1], a[r]);
#pragma unroll
    for (int j = 0; j < S::kXTiles; ++j) {
      const uint4 x = columns_at<F>(x_at + j * 8 * kStepColumns * 2);
      float sum[2][4];
      begin_sums<F, S>(x, sum);
      if constexpr (F::kPer16) {
        add_each<kStep>(a, scales, x, sum, j);
      } else {
        add_both<kStep>(a, scales, x, sum, j);
      }
    }
  }
  // Scales per 16 columns.
  template <int kStep>
  __device__ __forceinline__ void add_each(const std::uint32_t (&a)[S::kRowTiles][2][4],
                                           const Scales<F> (&scales)[2 * S::kRowTiles], const uint4& x,
                                           const float (&sum)[2][4], int j) {
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
  }
  // Scales per 32 columns and more.
  template <int kStep>
  __device__ __forceinline__ void add_both(const std::uint32_t (&a)[S::kRowTiles][2][4],
                                           const Scales<F> (&scales)[2 * S::kRowTiles], const uint4& x,
                                           const float (&sum)[2][4], int j) {
    float both[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) both[i] = sum[0][i] + sum[1][i];
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
      const Scales<F>&low = scales[2 * r], &high = scales[2 * r + 1];
      float part[4], all[4];
      mma_to(part, a[r][0], x.x, x.y, both), mma_to(all, a[r][1], x.z, x.w, part);
      add_scaled(c[r][j], all, low.template scale<kStep>(), high.template scale<kStep>());
      if constexpr (F::kMinimum)
        add_scaled(c[r][j], both, low.template raw_minimum<kStep>(), high.template raw_minimum<kStep>());
    }
  }
};

// One row of x: a warp's slabs are eight groups (or four). Lane 4 g + t has the sums of rows g and g + 8, groups 2 t and
// 2 t + 1.
template <typename F, typename S>
struct GemvSums {
  static constexpr int kGroups = 4 * S::kWarpSlabs;
  float c[2] = {};

  // As TileSums::multiply. x: of the slabs; zeros: the address of 64 zero bytes.
  __device__ __forceinline__ void multiply(std::uint32_t weights, std::uint32_t x, std::uint32_t zeros, int left,
                                           int slab) {
    if (left <= 0) return;
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const auto chunk = [&](int octet, int of) {
      return SharedWords{weights + octet * S::kOctetBytes + of / F::kSlabs * F::kChunkBytes};
    };
    Scales<F> scales[2];
    const int mine = slab + (S::kWarpSlabs == 2 ? t / 2 : 0);
#pragma unroll
    for (int octet = 0; octet < 2; ++octet) {
      scales[octet].load(chunk(octet, mine).at(F::kSlabs * F::kSlabBytes), mine % F::kSlabs, g);
      scales[octet].take_steps(t % 2);
    }
    const std::uint32_t here = x + g * S::kStepBytes + (F::kPer16 ? t * 8 : t * 16);
    float begin[2][4], sum[2][4];
    begin_sums<F, S>(columns_at<F>(g < kGroups ? here : zeros), begin);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[0][i] = begin[0][i], sum[1][i] = begin[1][i];
#pragma unroll
    for (int part = 0; part < S::kWarpSlabs; ++part) {
      Codes<F> codes[2];
#pragma unroll
      for (int octet = 0; octet < 2; ++octet)
        codes[octet].load(chunk(octet, slab + part).at((slab + part) % F::kSlabs * F::kSlabBytes), lane);
      const auto x_of = [&](int step) { return columns_at<F>(g == 4 * part + step ? here : zeros); };
      add<0>(codes, x_of(0), sum);
      add<1>(codes, x_of(1), sum);
      add<2>(codes, x_of(2), sum);
      add<3>(codes, x_of(3), sum);
    }
    // What is past the row's end may have any scale.
    scale<0>(scales, sum, begin, 2 * t < kGroups && left > 64 * t);
    scale<1>(scales, sum, begin, 2 * t < kGroups && left > 64 * t + 32);
  }

  // Stores the sums of the warp's 16 rows, and begins again.
  __device__ __forceinline__ void put(float* mine) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      c[i] += __shfl_xor_sync(~0u, c[i], 1);
      c[i] += __shfl_xor_sync(~0u, c[i], 2);
      if (lane % 4 == 0) mine[lane / 4 + 8 * i] = c[i];
      c[i] = 0;
    }
  }

 private:
  template <int kStep>
  static __device__ __forceinline__ void add(const Codes<F> (&codes)[2], const uint4& x, float (&sum)[2][4]) {
    std::uint32_t a[2][4];
    operands<kStep, S>(codes[0], codes[1], a);
    mma_to(sum[0], a[0], x.x, x.y, sum[0]);
    mma_to(sum[1], a[1], x.z, x.w, sum[1]);
  }
  // Scales the sums of group 2 t + kStep.
  template <int kStep>
  __device__ __forceinline__ void scale(const Scales<F> (&scales)[2], const float (&sum)[2][4],
                                        const float (&begin)[2][4], bool there) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const Scales<F>& s = scales[row];
      const int i = 2 * row + kStep;
      float v;
      if constexpr (F::kPer16) {
        v = s.template scale<kStep, 0>() * sum[0][i] + s.template scale<kStep, 1>() * sum[1][i];
        if constexpr (F::kMinimum)
          v += s.template raw_minimum<kStep, 0>() * begin[0][i] + s.template raw_minimum<kStep, 1>() * begin[1][i];
      } else {
        v = s.template scale<kStep>() * (sum[0][i] + sum[1][i]);
        if constexpr (F::kMinimum) v += s.template raw_minimum<kStep>() * (begin[0][i] + begin[1][i]);
      }
      c[row] += there ? v : 0.0f;
    }
  }
};

// Stores a unit, whose warps' sums are in shared memory.
template <typename S>
__device__ __forceinline__ void finish_sums(const SkinnyProblem& p, int unit, float* sums, const float* scale,
                                            int* last) {
  const int tile = unit / p.splits;
  const auto value = [&](int column, int row) {
    float v = 0;
#pragma unroll
    for (int i = 0; i < S::kSumParts; ++i) v += sums[(i * S::kColumns + column) * S::kSumStride + row];
    return v;
  };
  if (p.splits == 1) {
    store_tile<S>(p, tile, scale, value);
  } else if (add_parts<S>(p, unit, sums, last, value)) {
    store_tile<S>(p, tile, scale, [&](int column, int row) { return sums[column * S::kSumStride + row]; });
  }
}

#if __CUDA_ARCH__ >= 900
// Multiplies and stores all units of this thread block. refill() requests the stage before the ring's.
template <typename F, typename S, typename Refill>
__device__ __forceinline__ void consume_tma(const SkinnyProblem& p, SkinnyRing& ring, float* sums, const float* scale,
                                            int* last, const Refill& refill) {
  __shared__ __align__(16) std::uint32_t zeros[16];
  if (S::kOne && threadIdx.x < 16) zeros[threadIdx.x] = 0;
  __syncthreads();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int column_warp = warp / S::kRowWarps, row_warp = warp % S::kRowWarps;
  const int slab = column_warp * S::kWarpSlabs, first_row = row_warp * S::kRowTiles * 16;
  const std::uint32_t weights = S::kXBytes + first_row / 8 * S::kOctetBytes, x = slab * 4 * S::kStepBytes,
                      x_lane = lane / 4 * kStepColumns * 2 + lane % 4 * (F::kPer16 ? 8 : 16);
  std::conditional_t<S::kOne, GemvSums<F, S>, TileSums<F, S>> rows;
  SkinnyWalk walk(p);
  int buffer = 0;
  while (!walk.done()) {
    const int left = p.k - (walk.piece * S::kStageSlabs + slab) * static_cast<int>(kSlab);
    barrier_wait(ring.full + ring.stage * 8, ring.parity);
    const std::uint32_t at = ring.data + ring.stage * S::kStageBytes;
    if constexpr (S::kOne) {
      rows.multiply(at + weights, at + x, shared_address(zeros), left, slab);
    } else {
      rows.multiply(at + weights, at + x + x_lane, left, slab);
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
      rows.put(out + column_warp * S::kSumStride + first_row);
    } else {
#pragma unroll 1
      for (int turn = 0; turn < S::kColumnWarps; ++turn) {
        if (turn > 0) __syncthreads();
        if (turn == column_warp) rows.put(out + first_row, turn > 0);
      }
    }
    __syncthreads();
    finish_sums<S>(p, unit, out, scale, last);
    buffer = (buffer + 1) % S::kSumBuffers;
  }
}
#endif

#if __CUDA_ARCH__ >= 900
// Runs a thread block's ring: fills it, weights before the preceding kernel has ended, then calls consume(refill), whose
// warps call refill() once a stage: in turns it requests the stage before the ring's.
//   weights(walk, slot), x(piece, slot)  request a stage, called by whole warps
template <int kWarps, typename Weights, typename X, typename Consume>
__device__ __forceinline__ void run_ring(const SkinnyProblem& p, const SkinnyRing& ring, float* scale,
                                         const Weights& weights, const X& x, const Consume& consume) {
  const int warp = threadIdx.x / kWarp;
  SkinnyWalk fill(p), first(p);
  int filled = 0;
  for (; filled < p.stages && !fill.done(); ++filled, fill.advance())
    if (warp == 0) weights(fill, filled);
  grid_dependency_wait();
  if (warp == 0)
    for (int slot = 0; slot < filled; ++slot, first.advance()) x(first.piece, slot);
  finish_norms<kWarps>(p.norm, p.m, scale);
  int count = 0;
  // The stage before the one that this warp has just finished: the other warps are hardly ever still at it.
  consume([&] {
    if (count++ == 0 || fill.done()) return;
    if (warp == count % kWarps) {
      barrier_wait(ring.empty + ring.before * 8, ring.parity_before);
      weights(fill, ring.before);
      x(fill.piece, ring.before);
    }
    fill.advance();
  });
}
#endif

// x_map: [steps, rows of x, 32] of x.
template <typename F, int kTiles, int kRowTiles, int kRowWarps, int kWarps, int kBlocks>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks)
    skinny_tma_kernel(const __grid_constant__ SkinnyProblem p, const __grid_constant__ CUtensorMap x_map) {
#if __CUDA_ARCH__ >= 900
  using S = TmaShape<F, kTiles, kRowTiles, kRowWarps, kWarps, kBlocks>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ std::uint64_t full[kMaxStages], empty[kMaxStages];
  __shared__ float scale[S::kColumns];
  __shared__ int last;
  SkinnyRing ring{shared_address(memory), shared_address(full), shared_address(empty), p.stages};
  if (threadIdx.x == 0) ring_init(ring.full, ring.empty, p.stages, kWarps);
  __syncthreads();
  launch_dependents();

  run_ring<kWarps>(
      p, ring, scale, [&](const SkinnyWalk& walk, int slot) { request_weights<F, S>(p, walk, ring, slot); },
      [&](int piece, int slot) { request_x<S>(x_map, piece, ring, slot); },
      [&](const auto& refill) {
        consume_tma<F, S>(p, ring, reinterpret_cast<float*>(memory + p.stages * S::kStageBytes), scale, &last, refill);
      });
#endif
}

}  // namespace mneme::cuda
