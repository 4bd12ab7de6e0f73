// The skinny GEMM kernel of Hopper for 17 to 64 rows of x, any quantised weight type.
//
// As skinny_tma.cuh (a ring of bulk copies, warps that refill it in turns, splits over K), but the tensor core reads x
// from shared memory: weights are unpacked to bf16 in registers, once for all rows of x, and a warpgroup multiplies 64
// rows of them at once. While a group of columns is multiplied, the one before is scaled and the next unpacked. x is
// permuted once a GEMM (permuted_x.cuh).
//
// A stage of the ring: x, then the weights' octets.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "src/ops/gemm/device/skinny_launch.cuh"
#include "src/ops/gemm/device/wgmma/permuted_x.cuh"
#include "src/ops/gemm/device/wgmma/wgmma.cuh"

namespace mneme::cuda {

template <typename F, int kColumns_>
struct WgmmaShape {
  // Minima times sums of x: of 256 columns at once by mma, eight groups, where a chunk has so many; else in f32.
  static constexpr bool kMinimaByMma = F::kScale == Scale::kSuperMin32;
  static constexpr SumsOfX kSums = kMinimaByMma ? SumsOfX::kSplit : F::kMinimum ? SumsOfX::kFloat : SumsOfX::kNone;
  using X = PermutedX<F::kPer16, kSums, kColumns_>;
  static constexpr int kBlocks = kColumns_ > 32 ? 1 : 2;  // thread blocks per SM
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;
  static constexpr int kColumns = kColumns_, kLaneSums = kColumns / 2;
  static constexpr int kRows = 16 * kWarps, kOctets = kRows / 8;
  static constexpr int kPartRows = 64;  // of a partial sum of squares
  // A stage's weights are one box, at most 256 words of 8 bytes wide.
  static constexpr int kWordBytes = 8, kBoxBytes = 256 * kWordBytes;
  static constexpr int kChunks = F::kSlabs == 1 && 2 * F::kChunkBytes <= kBoxBytes ? 2 : 1;  // per stage
  static constexpr int kStageSlabs = kChunks * F::kSlabs;
  static constexpr int kOctetBytes = kChunks * F::kChunkBytes, kXBytes = kStageSlabs * X::kSlabBytes;
  static_assert(kOctetBytes <= kBoxBytes && kOctetBytes % 16 == 0);
  static constexpr int kStageBytes = (kXBytes + kOctets * kOctetBytes + 127) / 128 * 128;
  static constexpr int kSumParts = 1, kSumStride = kRows + 4, kSumFloats = kColumns * kSumStride;
  static constexpr bool kRaw = false;
  // Steps of 32 columns whose sums are scaled at once, and such groups of a slab. Beside mma of 64 rows, scaling costs as
  // many cycles as unpacking.
  static constexpr int kGroupSteps = F::kScale == Scale::kFloat64 ? 2 : 1;
  static constexpr int kGroups = F::kPer16 ? 8 : 4 / kGroupSteps;
  static_assert(kSums != SumsOfX::kFloat || kGroups == X::kGroups);
  static_assert(!kMinimaByMma || (F::kSlabs == 2 && kStageSlabs == 2 && kGroups == 4));
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Requests the weights of a stage, and says how much x there will be. One box for all octets: a copy each costs 70 cycles.
template <typename S>
__device__ __forceinline__ void request_box(const SkinnyProblem& p, const CUtensorMap& map, const SkinnyWalk& walk,
                                            const SkinnyRing& ring, int slot) {
  if (threadIdx.x % kWarp != 0) return;
  const std::uint32_t full = ring.full + slot * 8, to = ring.data + slot * S::kStageBytes + S::kXBytes;
  const int word = walk.piece * (S::kOctetBytes / S::kWordBytes), tile = walk.tile();
  barrier_expect(full, S::kOctetBytes * S::kOctets + S::kXBytes);
  if (p.kind == SkinnyOutput::kSwiglu) {
    copy_box(to, map, word, 0, tile * (S::kOctets / 2), full);
  } else {
    copy_box(to, map, word, tile * S::kOctets, 0, full);
  }
}

template <typename S>
__device__ __forceinline__ void request_permuted(const SkinnyProblem& p, int piece, const SkinnyRing& ring, int slot) {
  if (threadIdx.x % kWarp != 0) return;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   ring.data + slot * S::kStageBytes),
               "l"(p.permuted + std::int64_t{piece} * S::kXBytes), "r"(S::kXBytes), "r"(ring.full + slot * 8)
               : "memory");
}

// Leaves a warp's sums in shared memory, and begins again. mine: of its first row.
template <typename S>
__device__ __forceinline__ void put_sums(float (&c)[S::kLaneSums], float* mine) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < S::kLaneSums; ++i) {
    mine[(i / 4 * 8 + 2 * t + i % 2) * S::kSumStride + g + i % 4 / 2 * 8] = c[i];
    c[i] = 0;
  }
}

// A warp's 16 rows of w for all rows of x.
template <typename F, typename S>
struct WgmmaSums {
  float c[S::kLaneSums] = {};

  // A slab of a stage. weights: of the warp's octets; x: of the slab.
  __device__ __forceinline__ void multiply(std::uint32_t weights, std::uint32_t x, int slab) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const SharedWords chunk{weights + i * S::kOctetBytes + slab / F::kSlabs * F::kChunkBytes};
      codes_[i].load(chunk.at(slab % F::kSlabs * F::kSlabBytes), lane);
      scales_[i].load(chunk.at(F::kSlabs * F::kSlabBytes), slab % F::kSlabs, lane / 4);
    }
    const std::uint64_t operand = wgmma_operand(x, S::X::kK8Bytes);
    [&]<int... kGroup>(std::integer_sequence<int, kGroup...>) {
      (group<kGroup>(operand, x), ...);
    }
    (std::make_integer_sequence<int, S::kGroups>());
    const bool minima = S::kMinimaByMma && slab == F::kSlabs - 1;
    if (minima) {
      enqueue_minima(weights, x - slab * S::X::kSlabBytes);
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    hold(part_[(S::kGroups - 1) % 2]);
    add_group<S::kGroups - 1>(x);
    if (!minima) return;
    wgmma_wait<0>();
    hold(part_[S::kGroups % 2]);
#pragma unroll
    for (int i = 0; i < S::kLaneSums; ++i) c[i] += part_[S::kGroups % 2][i];
  }

  // As put_sums().
  __device__ __forceinline__ void put(float* mine) {
    put_sums<S>(c, mine);
  }

 private:
  Codes<F> codes_[2];
  Scales<F> scales_[2];
  std::uint32_t a_[2 * S::kGroupSteps][2][4];  // by step: a group's and those before, which mma still read
  float part_[2][S::kLaneSums] = {};

  // Unpacks a step's weights, both of its k16.
  template <int kStep>
  __device__ __forceinline__ void unpack() {
    operands<kStep, S, F>(codes_[0], codes_[1], a_[kStep % (2 * S::kGroupSteps)]);
  }
  template <int kStep, int kHalf>
  __device__ __forceinline__ void enqueue(float (&part)[S::kLaneSums], std::uint64_t operand, int add) {
    constexpr std::uint64_t kAt = (kStep * S::X::kStepBytes + kHalf * 2 * S::X::kK8Bytes) >> 4;
    wgmma(part, a_[kStep % (2 * S::kGroupSteps)][kHalf], operand + kAt, add);
  }

  // Enqueues the mma of a group of columns, and scales the sums of the group before.
  template <int kGroup>
  __device__ __forceinline__ void group(std::uint64_t operand, std::uint32_t x) {
    constexpr int kFirst = F::kPer16 ? kGroup / 2 : kGroup * S::kGroupSteps;
    if constexpr (!F::kPer16 || kGroup % 2 == 0) unpack<kFirst>();
    if constexpr (S::kGroupSteps == 2) unpack<kFirst + 1>();
    float(&part)[S::kLaneSums] = part_[kGroup % 2];
    hold(part);
    wgmma_fence();
    if constexpr (F::kPer16) {
      enqueue<kFirst, kGroup % 2>(part, operand, 0);
    } else {
      enqueue<kFirst, 0>(part, operand, 0), enqueue<kFirst, 1>(part, operand, 1);
    }
    if constexpr (S::kGroupSteps == 2)
      enqueue<kFirst + 1, 0>(part, operand, 1), enqueue<kFirst + 1, 1>(part, operand, 1);
    wgmma_commit();
    if constexpr (kGroup > 0) {
      wgmma_wait<1>();
      hold(part_[(kGroup - 1) % 2]);
      add_group<kGroup - 1>(x);
    }
  }
  // Enqueues the minima of the chunk's eight groups times the sums of x. A minimum, of seventeen bits, is two bf16, a sum
  // three: with a b c = the sum, (high high)(a b) + (low low)(a b) + (high low)(c c). weights: of the warp's octets; x: of the
  // chunk's first slab.
  __device__ __forceinline__ void enqueue_minima(std::uint32_t weights, std::uint32_t x) {
    if constexpr (S::kMinimaByMma) {
      const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
      std::uint32_t high[2], low[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const SharedWords chunk{weights + i * S::kOctetBytes};
        const std::uint32_t word =
            chunk.at(F::kSlabs * F::kSlabBytes).at(96 + t / 2 * 32 + g * 4).one() >> (16 * (t % 2));
        const float first = -times_byte<0>(scales_[i].dmin, word), second = -times_byte<1>(scales_[i].dmin, word);
        const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
        const float2 taken = __bfloat1622float2(both);
        const __nv_bfloat162 rest = __floats2bfloat162_rn(first - taken.x, second - taken.y);
        high[i] = reinterpret_cast<const std::uint32_t&>(both), low[i] = reinterpret_cast<const std::uint32_t&>(rest);
      }
      const std::uint32_t twice_high[4] = {high[0], high[1], high[0], high[1]},
                          twice_low[4] = {low[0], low[1], low[0], low[1]}, each[4] = {high[0], high[1], low[0], low[1]};
      const std::uint64_t sums = wgmma_operand(x + S::X::kXBytes, S::X::kK8Bytes);
      float(&part)[S::kLaneSums] = part_[S::kGroups % 2];
      hold(part);
      wgmma_fence();
      wgmma(part, twice_high, sums, 0);
      wgmma(part, twice_low, sums, 1);
      wgmma(part, each, sums + (S::X::kSlabBytes >> 4), 1);
      wgmma_commit();
    }
  }
  template <int kGroup>
  __device__ __forceinline__ void add_group(std::uint32_t x) {
    constexpr int kStep = F::kPer16 ? kGroup / 2 : kGroup * S::kGroupSteps, kHalf = F::kPer16 ? kGroup % 2 : 0;
    const float(&part)[S::kLaneSums] = part_[kGroup % 2];
    const float low = scales_[0].template scale<kStep, kHalf>(), high = scales_[1].template scale<kStep, kHalf>();
#pragma unroll
    for (int i = 0; i < S::kLaneSums; ++i) c[i] += (i % 4 < 2 ? low : high) * part[i];
    if constexpr (F::kMinimum && !S::kMinimaByMma) {
      const float low_min = scales_[0].template minimum<kStep, kHalf>(),
                  high_min = scales_[1].template minimum<kStep, kHalf>();
      const SharedWords sums{x + S::X::kXBytes + kGroup * S::kColumns * 4 + threadIdx.x % 4 * 8};
#pragma unroll
      for (int i = 0; i < S::kLaneSums; i += 4) {
        const uint2 v = sums.at(i / 4 * 32).two();
        const float first = __uint_as_float(v.x), second = __uint_as_float(v.y);
        c[i] += low_min * first, c[i + 1] += low_min * second;
        c[i + 2] += high_min * first, c[i + 3] += high_min * second;
      }
    }
  }
};

// Stores a unit, whose warps' sums are in shared memory.
template <typename S>
__device__ __forceinline__ void finish_tile(const SkinnyProblem& p, int unit, float* sums, const float* scale,
                                            int* last) {
  const auto value = [&](int column, int row) { return sums[column * S::kSumStride + row]; };
  if (p.splits > 1 && !add_parts<S>(p, unit, sums, last, value)) return;
  if (p.kind == SkinnyOutput::kResidual) {
    store_residual_tile<S>(p, unit / p.splits, sums);
  } else {
    store_tile<S>(p, unit / p.splits, scale, value);
  }
}

// Multiplies and stores all units of this thread block. refill() requests the stage before the ring's.
template <typename F, typename S, typename Refill>
__device__ __forceinline__ void consume_wgmma(const SkinnyProblem& p, SkinnyRing& ring, float* sums, const float* scale,
                                              int* last, const Refill& refill) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  WgmmaSums<F, S> rows;
  SkinnyWalk walk(p);
  while (!walk.done()) {
    barrier_wait(ring.full + ring.stage * 8, ring.parity);
    const std::uint32_t at = ring.data + ring.stage * S::kStageBytes;
#pragma unroll
    for (int slab = 0; slab < S::kStageSlabs; ++slab)
      rows.multiply(at + S::kXBytes + 2 * warp * S::kOctetBytes, at + slab * S::X::kSlabBytes, slab);
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty + ring.stage * 8);
    refill();
    ring.advance();
    const int unit = walk.unit;
    if (!walk.advance()) continue;
    __syncthreads();  // the tile before is stored
    rows.put(sums + 16 * warp);
    __syncthreads();
    finish_tile<S>(p, unit, sums, scale, last);
  }
}
#endif

template <typename F, int kColumns>
__global__ void __launch_bounds__(WgmmaShape<F, kColumns>::kThreads, WgmmaShape<F, kColumns>::kBlocks)
    skinny_wgmma_kernel(const __grid_constant__ SkinnyProblem p, const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = WgmmaShape<F, kColumns>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ std::uint64_t full[kMaxStages], empty[kMaxStages];
  __shared__ float scale[S::kColumns];
  __shared__ int last;
  SkinnyRing ring{shared_address(memory), shared_address(full), shared_address(empty), p.stages};
  if (threadIdx.x == 0) ring_init(ring.full, ring.empty, p.stages, S::kWarps);
  __syncthreads();
  launch_dependents();

  run_ring<S::kWarps>(
      p, ring, scale, [&](const SkinnyWalk& walk, int slot) { request_box<S>(p, map, walk, ring, slot); },
      [&](int piece, int slot) { request_permuted<S>(p, piece, ring, slot); },
      [&](const auto& refill) {
        consume_wgmma<F, S>(p, ring, reinterpret_cast<float*>(memory + p.stages * S::kStageBytes), scale, &last,
                            refill);
      });
#endif
}

// Octets of a matrix; of gate and up in turns for kSwiglu.
template <typename S>
CUtensorMap octets_map(const SkinnyProblem& p) {
  const std::int64_t words = p.w_stride / S::kWordBytes, octets = (p.n_out + 7) / 8;
  constexpr int kWords = S::kOctetBytes / S::kWordBytes;
  if (p.kind == SkinnyOutput::kSwiglu)
    return tensor_map<3>(p.w, {words, 2, octets / 2}, {octets / 2 * p.w_stride, p.w_stride},
                         {kWords, 2, S::kOctets / 2}, CU_TENSOR_MAP_DATA_TYPE_UINT64);
  return tensor_map<3>(p.w, {words, octets, 1}, {p.w_stride, octets * p.w_stride}, {kWords, S::kOctets, 1},
                       CU_TENSOR_MAP_DATA_TYPE_UINT64);
}

template <typename F, int kColumns>
void launch_wgmma_rows(SkinnyProblem p, const CudaContext& context) {
  using S = WgmmaShape<F, kColumns>;
  const auto kernel = skinny_wgmma_kernel<F, kColumns>;
  constexpr int kSums = S::kSumFloats * 4;
  static const bool ready = [&] {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_per_block(S::kBlocks)),
               "a skinny GEMM's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  const int columns = S::kStageSlabs * static_cast<int>(kSlab);
  p.stages = std::min(kMaxStages, (shared_per_block(S::kBlocks) - kSums) / S::kStageBytes);
  const int slots = share_units<S>(p, S::kBlocks, columns);
  const int steps = p.pieces * columns / kStepColumns, threads = steps * kColumns;
  launch(context, "permute_x", permute_x_kernel<F::kPer16, S::kSums, kColumns>,
         dim3(static_cast<unsigned>((threads + 255) / 256)), dim3(256), 0, p.x, p.m, p.k, steps, p.permuted);

  launch(context, "skinny_gemm_wgmma", kernel, dim3(static_cast<unsigned>(std::min(p.units, slots))), dim3(S::kThreads),
         static_cast<std::size_t>(p.stages) * S::kStageBytes + kSums, p, octets_map<S>(p));
}

template <typename F>
void launch_wgmma(const SkinnyProblem& p, const CudaContext& context) {
  if (p.m <= 32) return launch_wgmma_rows<F, 32>(p, context);
  launch_wgmma_rows<F, 64>(p, context);
}

#define MNEME_WGMMA_FORMAT(linkage, F) linkage template void launch_wgmma<F>(const SkinnyProblem&, const CudaContext&);

}  // namespace mneme::cuda
