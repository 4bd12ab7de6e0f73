// The skinny GEMM kernel of Hopper for 17 to 32 rows of x, bf16 weights.
//
// As skinny_wgmma.cuh, but nothing is unpacked: both operands are boxes of 64 columns that TMA swizzles as the tensor core
// reads them. A warpgroup has 64 rows of weights, of each 16 eight of gate and eight of up for SwiGLU.
//
// A stage of the ring: x, then weights.
#include "src/ops/gemm/device/wgmma/skinny_wgmma.cuh"

namespace mneme::cuda {
namespace {

struct Shape {
  static constexpr int kBlocks = 2;  // thread blocks per SM
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;
  static constexpr int kColumns = 32, kLaneSums = kColumns / 2;
  static constexpr int kRows = 16 * kWarps, kPartRows = 64;  // of a tile; of a partial sum of squares
  static constexpr int kStageColumns = 64, kRowBytes = 2 * kStageColumns;
  static constexpr int kXBytes = kColumns * kRowBytes, kWeightBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kSwizzleBytes = 1024;  // alignment of a box
  static_assert(kXBytes % kSwizzleBytes == 0);
  static constexpr int kSumParts = 1, kSumStride = kRows + 4, kSumFloats = kColumns * kSumStride;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Requests the weights of a stage, and says how much x there will be.
__device__ __forceinline__ void request_rows(const SkinnyProblem& p, const CUtensorMap& map, const SkinnyWalk& walk,
                                             const SkinnyRing& ring, int slot) {
  if (threadIdx.x % kWarp != 0) return;
  const std::uint32_t full = ring.full + slot * 8, to = ring.data + slot * Shape::kStageBytes + Shape::kXBytes;
  const int column = walk.piece * Shape::kStageColumns, tile = walk.tile();
  barrier_expect(full, Shape::kStageBytes);
  if (p.kind == SkinnyOutput::kSwiglu) {
    copy_box(to, map, column, 0, 0, tile * (Shape::kRows / 16), full);
  } else {
    copy_box(to, map, column, tile * Shape::kRows, full);
  }
}

// x, unlike weights, stays in the L2 cache.
__device__ __forceinline__ void request_columns(const CUtensorMap& map, int piece, const SkinnyRing& ring, int slot) {
  if (threadIdx.x % kWarp != 0) return;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          ring.data + slot * Shape::kStageBytes),
      "l"(&map), "r"(piece * Shape::kStageColumns), "r"(0), "r"(ring.full + slot * 8)
      : "memory");
}

// Multiplies and stores all units of this thread block. refill() requests the stage before the ring's.
template <typename Refill>
__device__ __forceinline__ void consume_rows(const SkinnyProblem& p, SkinnyRing& ring, float* sums, const float* scale,
                                             int* last, const Refill& refill) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float c[Shape::kLaneSums] = {};
  SkinnyWalk walk(p);
  while (!walk.done()) {
    barrier_wait(ring.full + ring.stage * 8, ring.parity);
    const std::uint32_t at = ring.data + ring.stage * Shape::kStageBytes;
    const std::uint64_t weights = wgmma_swizzled(at + Shape::kXBytes + warp / 4 * (64 * Shape::kRowBytes)),
                        x = wgmma_swizzled(at);
    hold(c);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Shape::kStageColumns / 16; ++k) wgmma(c, weights + k * kSwizzledK16, x + k * kSwizzledK16);
    wgmma_commit();
    wgmma_wait<0>();
    hold(c);
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty + ring.stage * 8);
    refill();
    ring.advance();
    const int unit = walk.unit;
    if (!walk.advance()) continue;
    __syncthreads();  // the tile before is stored
    put_sums<Shape>(c, sums + 16 * warp);
    __syncthreads();
    finish_tile<Shape>(p, unit, sums, scale, last);
  }
}
#endif

__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    skinny_wgmma_bf16_kernel(const __grid_constant__ SkinnyProblem p, const __grid_constant__ CUtensorMap weights,
                             const __grid_constant__ CUtensorMap x) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ std::uint64_t full[kMaxStages], empty[kMaxStages];
  __shared__ float scale[Shape::kColumns];
  __shared__ int last;
  const std::uint32_t skew =
      (Shape::kSwizzleBytes - shared_address(memory) % Shape::kSwizzleBytes) % Shape::kSwizzleBytes;
  SkinnyRing ring{shared_address(memory) + skew, shared_address(full), shared_address(empty), p.stages};
  if (threadIdx.x == 0) ring_init(ring.full, ring.empty, p.stages, Shape::kWarps);
  __syncthreads();
  launch_dependents();

  run_ring<Shape::kWarps>(
      p, ring, scale, [&](const SkinnyWalk& walk, int slot) { request_rows(p, weights, walk, ring, slot); },
      [&](int piece, int slot) { request_columns(x, piece, ring, slot); },
      [&](const auto& refill) {
        consume_rows(p, ring, reinterpret_cast<float*>(memory + skew + p.stages * Shape::kStageBytes), scale, &last,
                     refill);
      });
#endif
}

// Rows of a matrix; of gate and up in turns of eight for kSwiglu.
CUtensorMap rows_map(const SkinnyProblem& p) {
  constexpr auto kType = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  constexpr auto kSwizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  const std::int64_t row = std::int64_t{p.k} * 2;
  if (p.kind == SkinnyOutput::kSwiglu)
    return tensor_map<4>(p.w, {p.k, 8, 2, p.half / 8}, {row, p.half * row, 8 * row},
                         {Shape::kStageColumns, 8, 2, Shape::kRows / 16}, kType, kSwizzle);
  return tensor_map<2>(p.w, {p.k, p.n_out}, {row}, {Shape::kStageColumns, Shape::kRows}, kType, kSwizzle);
}

}  // namespace

void launch_wgmma_bf16(SkinnyProblem p, const CudaContext& context) {
  constexpr int kOther = Shape::kSumFloats * 4 + Shape::kSwizzleBytes;
  static const bool ready = [&] {
    cuda_check(cudaFuncSetAttribute(skinny_wgmma_bf16_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    shared_per_block(Shape::kBlocks)),
               "a skinny GEMM's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  p.stages = std::min(kMaxStages, (shared_per_block(Shape::kBlocks) - kOther) / Shape::kStageBytes);
  const int slots = share_units<Shape>(p, Shape::kBlocks, Shape::kStageColumns);
  const CUtensorMap x = tensor_map<2>(p.x, {p.k, p.m}, {std::int64_t{p.k} * 2}, {Shape::kStageColumns, Shape::kColumns},
                                      CU_TENSOR_MAP_DATA_TYPE_UINT16, CU_TENSOR_MAP_SWIZZLE_128B);
  launch(context, "skinny_gemm_bf16", skinny_wgmma_bf16_kernel, dim3(static_cast<unsigned>(std::min(p.units, slots))),
         dim3(Shape::kThreads), static_cast<std::size_t>(p.stages) * Shape::kStageBytes + kOther, p, rows_map(p), x);
}

}  // namespace mneme::cuda
