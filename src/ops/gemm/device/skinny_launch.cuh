// Launches skinny_kernel for a weight format: rows of x to a kernel, parts of K, stages of the ring.
#pragma once

#include <algorithm>
#include <type_traits>

#include "src/ops/gemm/device/skinny_kernel.cuh"
#include "src/ops/gemm/device/skinny_tma.cuh"

namespace mneme::cuda {

constexpr int kRingBytes = 96 << 10;   // of a thread block where an SM has two, so that L1 keeps 60 KiB for x
constexpr int kStaticBytes = 3 << 10;  // shared memory beside the dynamic, and what the driver takes

// Dynamic shared memory of a thread block where an SM has so many.
inline int shared_per_block(int blocks) {
  return std::min(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
                  device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / blocks) -
         kStaticBytes;
}

// How a thread block of skinny_kernel<F, kTiles> uses shared memory on this device.
struct SkinnyResidency {
  int stages = 0;  // of the ring; fewer than 2: the kernel does not fit
  int blocks = 1;  // thread blocks per SM
};

template <typename F, int kTiles>
SkinnyResidency skinny_residency() {
  using S = SkinnyShape<F, kTiles>;
  constexpr int kSums = S::kSumBuffers * S::kSumFloats * 4;
  const int most = shared_per_block(1), each = shared_per_block(S::kBlocksEach);
  const auto stages = [](int bytes) { return std::min(kMaxStages, (bytes - kSums) / S::kStageBytes); };
  if (S::kBlocksEach > 1) {
    const int n = stages(std::min({most, each, kRingBytes + kSums}));
    if (n >= 3) return {n, S::kBlocksEach};
  }
  return {stages(most), 1};
}

// Parts of K: as many rounds of thread blocks as there must be, each as short as it can be. Adding up parts
// costs about as much as four stages.
inline int skinny_splits(int tiles, int pieces, int slots, int most_units = kSkinnyUnits) {
  int best = 1;
  double least = 0;
  for (int splits = 1; splits <= std::min(kMaxSplits, pieces) && tiles * splits <= most_units; ++splits) {
    const int rounds = (tiles * splits + slots - 1) / slots;
    const double cost = rounds * (static_cast<double>(pieces) / splits + (splits > 1 ? 4.5 : 0.5));
    if (splits == 1 || cost < least) best = splits, least = cost;
  }
  return best;
}

template <typename F, int kTiles>
void launch_skinny_tiles(SkinnyProblem p, const CudaContext& context) {
  using S = SkinnyShape<F, kTiles>;
  static const SkinnyResidency residency = skinny_residency<F, kTiles>();
  static const int shared = residency.stages * S::kStageBytes + S::kSumBuffers * S::kSumFloats * 4;
  static const bool ready = [] {
    cuda_check(cudaFuncSetAttribute(skinny_kernel<F, kTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
               "a skinny GEMM's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  const bool swiglu = p.kind == SkinnyOutput::kSwiglu;
  const int rows = swiglu ? p.half : p.n_out, per_tile = swiglu ? S::kRows / 2 : S::kRows;
  const int tiles = (rows + per_tile - 1) / per_tile, columns = S::kStageSlabs * static_cast<int>(kSlab);
  const int slots = residency.blocks * sm_count();
  p.stages = residency.stages;
  p.pieces = (p.k + columns - 1) / columns;
  if (p.splits == 0) p.splits = kTiles == 1 || p.partial == nullptr ? 1 : skinny_splits(tiles, p.pieces, slots);
  p.splits = std::min({p.splits, p.pieces, kMaxSplits});
  p.units = tiles * p.splits;
  CUtensorMap map{};
  int lines = 0;
  if constexpr (F::kRowMajor) {
    if (has_hopper_code()) {
      const std::int64_t row = std::int64_t{p.k} * 2;
      const int line = row % 128 == 0 ? 128 : 64;
      lines = S::kRowBytes / line;
      map = tensor_map<3>(p.w, {line / 2, row / line, p.n_out}, {line, row}, {line / 2, lines, 8});
    }
  }
  launch(context, "skinny_gemm", skinny_kernel<F, kTiles>, dim3(static_cast<unsigned>(std::min(p.units, slots))),
         dim3(kSkinnyThreads), static_cast<std::size_t>(shared), p, map, lines);
}

// Sets the pieces, of `columns` each, the parts of K where p has none, and the units, of a kernel of shape S. Returns how
// many thread blocks run at a time, `blocks` an SM.
template <typename S>
int share_units(SkinnyProblem& p, int blocks, int columns) {
  p.pieces = (p.k + columns - 1) / columns;
  const bool swiglu = p.kind == SkinnyOutput::kSwiglu;
  const int rows = swiglu ? p.half : p.n_out, per_tile = swiglu ? S::kRows / 2 : S::kRows;
  const int tiles = (rows + per_tile - 1) / per_tile, slots = blocks * sm_count();
  const int units = std::min<int>(kSkinnyUnits, skinny_partial_bytes() / (S::kColumns * S::kRows * sizeof(float)));
  if (p.splits == 0) p.splits = p.partial == nullptr ? 1 : skinny_splits(tiles, p.pieces, slots, units);
  p.splits = std::max(1, std::min({p.splits, p.pieces, kMaxSplits, units / tiles}));
  p.units = tiles * p.splits;
  return slots;
}

template <typename F, int kTiles, int kRowTiles, int kRowWarps, int kWarps, int kBlocks>
void launch_skinny_tma(SkinnyProblem p, const CudaContext& context) {
  using S = TmaShape<F, kTiles, kRowTiles, kRowWarps, kWarps, kBlocks>;
  const auto kernel = skinny_tma_kernel<F, kTiles, kRowTiles, kRowWarps, kWarps, kBlocks>;
  constexpr int kSums = S::kSumBuffers * S::kSumFloats * 4;
  static const bool ready = [&] {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_per_block(kBlocks)),
               "a skinny GEMM's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  p.stages = std::min(kMaxStages, (shared_per_block(kBlocks) - kSums) / S::kStageBytes);
  const int slots = share_units<S>(p, kBlocks, S::kStageSlabs * static_cast<int>(kSlab));
  const CUtensorMap map = tensor_map<3>(p.x, {kStepColumns, p.m, p.k / kStepColumns}, {std::int64_t{p.k} * 2, 64},
                                        {kStepColumns, S::kColumns, S::kStageSteps});
  launch(context, "skinny_gemm", kernel, dim3(static_cast<unsigned>(std::min(p.units, slots))), dim3(S::kThreads),
         static_cast<std::size_t>(p.stages) * S::kStageBytes + kSums, p, map);
}

// On Hopper, where it is the faster one (docs/design/quantised-gemm.md). False: it is not.
template <typename F>
bool launch_skinny_hopper(const SkinnyProblem& p, const CudaContext& context) {
  if (p.m == 1) {
    launch_skinny_tma<F, 0, 1, 1, 8, 2>(p, context);
    return true;
  }
  if (p.m < 25 || p.m > 32) return false;
  if constexpr (F::kMinimum) {
    launch_skinny_tma<F, 4, 2, 4, 8, 1>(p, context);
  } else {
    launch_skinny_tma<F, 4, 1, 8, 16, 1>(p, context);
  }
  return true;
}

// Calls f with the number of tiles as a constant. Formats of one's own kernel for few rows, and of cuBLASLt's for many,
// have two tiles alone.
template <typename F, typename Function>
auto with_tiles(int tiles, const Function& f) {
  if constexpr (F::kRowMajor) {
    return f(std::integral_constant<int, 2>{});
  } else {
    return tiles == 1   ? f(std::integral_constant<int, 1>{})
           : tiles == 2 ? f(std::integral_constant<int, 2>{})
           : tiles == 3 ? f(std::integral_constant<int, 3>{})
           : tiles == 4 ? f(std::integral_constant<int, 4>{})
                        : f(std::integral_constant<int, 8>{});
  }
}

// The kernel for m rows, in tiles of 8, or the widest that fits the device; 0: none.
template <typename F>
int skinny_tiles(int m) {
  if (F::kRowMajor && m > kSkinnyBf16Rows) return 0;
  const auto fits = [](int tiles) {
    return with_tiles<F>(tiles, [](auto n) { return skinny_residency<F, decltype(n)::value>().stages >= 2; });
  };
  int tiles = m <= 32 ? (m + 7) / 8 : 8;
  while (tiles > 2 && !fits(tiles)) tiles /= 2;
  return fits(tiles) ? tiles : 0;
}

// The problem of rows of x from `first` on.
inline SkinnyProblem rows_from(SkinnyProblem p, int first) {
  p.x += std::int64_t{first} * p.k, p.m -= first;
  if (p.norm.sums != nullptr) p.norm.sums += std::int64_t{first} * p.norm.n_parts;
  if (p.store.y != nullptr)
    p.store.y = static_cast<std::byte*>(p.store.y) + first * p.store.stride * (p.store.bf16 ? 2 : 4);
  if (p.residual.residual != nullptr) {
    const std::int64_t at = std::int64_t{first} * p.n_out;
    p.residual.residual += at, p.residual.sums += std::int64_t{first} * p.parts;
    p.residual.x_next = static_cast<__nv_bfloat16*>(p.residual.x_next) + at;
  }
  if (p.swiglu != nullptr) p.swiglu += std::int64_t{first} * p.half;
  return p;
}

template <typename F>
void launch_skinny(const SkinnyProblem& p, const CudaContext& context) {
  if constexpr (!F::kRowMajor)
    if (has_hopper_code() && launch_skinny_hopper<F>(p, context)) return;
  const int tiles = skinny_tiles<F>(p.m);
  if (tiles == 0) no_skinny_gemm(p.m);
  for (int first = 0; first < p.m; first += 8 * tiles) {
    SkinnyProblem part = rows_from(p, first);
    part.m = std::min(part.m, 8 * tiles);
    with_tiles<F>(tiles, [&](auto n) { launch_skinny_tiles<F, decltype(n)::value>(part, context); });
  }
}

#define MNEME_SKINNY_FORMAT(linkage, F)                                             \
  linkage template void launch_skinny<F>(const SkinnyProblem&, const CudaContext&); \
  linkage template int skinny_tiles<F>(int);

}  // namespace mneme::cuda
