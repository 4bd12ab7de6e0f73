// A warp multiplies 16 rows of an expert's matrix, two octets, with 8 kTiles rows of x. Columns go to lanes in runs of
// eight (or of four twice), of w and of x alike: a dot product does not depend on their order, and so both are loaded
// straight into fragments.
#include <utility>

#include "src/cuda/common.cuh"
#include "src/ops/experts/grouped_gemm_cuda.h"
#include "src/ops/gemm/device/silu.cuh"
#include "src/ops/gemm/device/weight_format.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kWarpRows = 16;  // of w
constexpr int kOctetRows = static_cast<int>(kOctet);
constexpr int kStep = 32, kSteps = 4;         // columns; steps of a slab
constexpr int kFewTiles = 1, kManyTiles = 4;  // of eight rows of x
// With few rows of x a thread block's warps share 16 rows of w, a quarter of the columns each: reading is bound by
// latency.
template <int kTiles>
constexpr int kBlockRows = kTiles == kFewTiles ? kWarpRows : kWarps* kWarpRows;
constexpr std::uint32_t kOnes = 0x3f803f80u;  // two bf16

struct GroupedArgs {
  const __nv_bfloat16* x;
  bool by_slot, y_f32;
  int n_used, k, n_out;
  const std::byte* w;
  std::int64_t octet_bytes;  // 0: row-major
  const float* bias;
  void* y;
  SortedPairs pairs;
  // A gated product has rows of gate before as many of up (else 0), a limit, and factors of rows of x (or null).
  int half = 0;
  float limit = 0;
  const float* scales = nullptr;
};

__device__ __forceinline__ void store(const GroupedArgs& a, int expert, int slot, int row, float value) {
  if (row >= a.n_out) return;
  if (a.bias != nullptr) value += a.bias[static_cast<std::int64_t>(expert) * a.n_out + row];
  const std::int64_t at = static_cast<std::int64_t>(slot) * a.n_out + row;
  if (a.y_f32)
    static_cast<float*>(a.y)[at] = value;
  else
    static_cast<__nv_bfloat16*>(a.y)[at] = __float2bfloat16_rn(value);
}

__device__ __forceinline__ float gated(float gate, float up, float limit) {
  if (limit == 0) return silu(gate) * up;
  // Compared so that NaN stays.
  const float g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
  return g / (1.0f + __expf(-1.702f * g)) * (u + 1.0f);
}

// The product of a row of gate and of up, which one lane has.
__device__ __forceinline__ void store_gated(const GroupedArgs& a, int expert, int slot, int row, float gate, float up) {
  if (row >= a.half) return;
  if (a.scales != nullptr) {
    const float scale = a.scales[a.pairs.order[slot] / a.n_used];
    gate *= scale, up *= scale;
  }
  if (a.bias != nullptr) {
    const float* bias = a.bias + static_cast<std::int64_t>(expert) * a.n_out + row;
    gate += bias[0], up += bias[a.half];
  }
  static_cast<__nv_bfloat16*>(a.y)[static_cast<std::int64_t>(slot) * a.half + row] =
      __float2bfloat16_rn(gated(gate, up, a.limit));
}

__device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t (&low)[4], const std::uint32_t (&high)[4],
                                         int pair, std::uint32_t x0, std::uint32_t x1) {
  mma<__nv_bfloat16>(c, low[pair], high[pair], low[pair + 1], high[pair + 1], x0, x1);
}

// Eight columns of a row of x, as the lane's weights have them.
template <typename F>
__device__ __forceinline__ uint4 columns_of(const __nv_bfloat16* x, int t) {
  if constexpr (!F::kPer16) return *reinterpret_cast<const uint4*>(x + 8 * t);
  const uint2 a = *reinterpret_cast<const uint2*>(x + 4 * t), b = *reinterpret_cast<const uint2*>(x + 16 + 4 * t);
  return {a.x, a.y, b.x, b.y};
}

// What two octets have of a slab.
template <typename F>
struct Slab {
  Codes<F> low, high;
  Scales<F> low_scales, high_scales;

  __device__ __forceinline__ void load(const std::byte* low_octet, const std::byte* high_octet, int slab, int lane) {
    const std::int64_t chunk = static_cast<std::int64_t>(slab / F::kSlabs) * F::kChunkBytes;
    const int codes = slab % F::kSlabs * F::kSlabBytes, scales = F::kSlabs * F::kSlabBytes;
    low.load(GlobalWords{low_octet + chunk + codes}, lane);
    high.load(GlobalWords{high_octet + chunk + codes}, lane);
    low_scales.load(GlobalWords{low_octet + chunk + scales}, slab % F::kSlabs, lane / 4);
    high_scales.load(GlobalWords{high_octet + chunk + scales}, slab % F::kSlabs, lane / 4);
  }

  // c += scale times the products of one k16, or of both where they share it.
  template <int kAt, int kHalf>
  __device__ __forceinline__ void add(float (&c)[4], const float (&block)[4], const float (&sums)[4]) const {
    const float low_scale = low_scales.template scale<kAt, kHalf>();
    const float high_scale = high_scales.template scale<kAt, kHalf>();
    c[0] += low_scale * block[0], c[1] += low_scale * block[1];
    c[2] += high_scale * block[2], c[3] += high_scale * block[3];
    if constexpr (F::kMinimum) {
      const float low_minimum = low_scales.template minimum<kAt, kHalf>();
      const float high_minimum = high_scales.template minimum<kAt, kHalf>();
      c[0] += low_minimum * sums[0], c[1] += low_minimum * sums[1];
      c[2] += high_minimum * sums[2], c[3] += high_minimum * sums[3];
    }
  }

  template <int kAt, int kTiles>
  __device__ __forceinline__ void step(float (&c)[kTiles][4], const __nv_bfloat16* const (&x)[kTiles], int column,
                                       int t) const {
    std::uint32_t a[4], b[4];
    low.template unpack<kAt>(a);
    high.template unpack<kAt>(b);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint4 v = columns_of<F>(x[i] + column, t);
      float block[4] = {}, sums[4] = {};
      multiply(block, a, b, 0, v.x, v.y);
      if constexpr (F::kMinimum) mma<__nv_bfloat16>(sums, kOnes, kOnes, kOnes, kOnes, v.x, v.y);
      if constexpr (F::kPer16) {
        add<kAt, 0>(c[i], block, sums);
        float other[4] = {}, other_sums[4] = {};
        multiply(other, a, b, 2, v.z, v.w);
        if constexpr (F::kMinimum) mma<__nv_bfloat16>(other_sums, kOnes, kOnes, kOnes, kOnes, v.z, v.w);
        add<kAt, 1>(c[i], other, other_sums);
      } else {
        multiply(block, a, b, 2, v.z, v.w);
        if constexpr (F::kMinimum) mma<__nv_bfloat16>(sums, kOnes, kOnes, kOnes, kOnes, v.z, v.w);
        add<kAt, 0>(c[i], block, sums);
      }
    }
  }
};

// The first rows of a warp's two octets: sixteen rows of the matrix from `row` on, or eight of gate and those of up.
__device__ __forceinline__ int2 octet_rows(const GroupedArgs& a, int row) {
  const int last = (a.half > 0 ? a.half : a.n_out) - kOctetRows;
  if (a.half > 0) return {min(row, last), a.half + min(row, last)};
  return {min(row, last), min(row + kOctetRows, last)};
}

// One warp's rows from `row` on, of the matrix that begins at row `base`; of its slabs `begin`, `begin` + `by`, ...
template <typename F, int kTiles>
__device__ __forceinline__ void run_octets(const GroupedArgs& a, std::int64_t base, int row, float (&c)[kTiles][4],
                                           const __nv_bfloat16* const (&x)[kTiles], int lane, int begin, int by) {
  const int2 rows = octet_rows(a, row);
  const std::byte* low = a.w + (base + rows.x) / kOctet * a.octet_bytes;
  const std::byte* high = a.w + (base + rows.y) / kOctet * a.octet_bytes;
#pragma unroll 2
  for (int column = begin * kSteps * kStep; column < a.k; column += by * kSteps * kStep) {
    Slab<F> slab;
    slab.load(low, high, column / (kSteps * kStep), lane);
    [&]<int... kAt>(std::integer_sequence<int, kAt...>) {
      ((column + kAt * kStep < a.k ? slab.template step<kAt>(c, x, column + kAt * kStep, lane % 4) : void()), ...);
    }
    (std::make_integer_sequence<int, kSteps>());
  }
}

template <int kTiles>
__device__ __forceinline__ void run_bf16(const GroupedArgs& a, std::int64_t base, int row, float (&c)[kTiles][4],
                                         const __nv_bfloat16* const (&x)[kTiles], int lane, int begin, int by) {
  const auto* w = reinterpret_cast<const __nv_bfloat16*>(a.w);
  const int g = lane / 4, t = lane % 4;
  const int2 rows = octet_rows(a, row);
  const __nv_bfloat16 *low = w + (base + rows.x + g) * a.k + 8 * t, *high = w + (base + rows.y + g) * a.k + 8 * t;
#pragma unroll 4
  for (int column = begin * kStep; column < a.k; column += by * kStep) {
    const uint4 p = load_stream(low + column), q = load_stream(high + column);
    const std::uint32_t first[4] = {p.x, p.y, p.z, p.w}, second[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint4 v = columns_of<Bf16Format>(x[i] + column, t);
      multiply(c[i], first, second, 0, v.x, v.y);
      multiply(c[i], first, second, 2, v.z, v.w);
    }
  }
}

// One warp's rows from `row` on.
template <typename F, int kTiles>
__device__ __forceinline__ void run_rows(const GroupedArgs& a, std::int64_t base, int row, float (&c)[kTiles][4],
                                         const __nv_bfloat16* const (&x)[kTiles], int lane, int begin, int by) {
  if constexpr (F::kRowMajor) {
    run_bf16(a, base, row, c, x, lane, begin, by);
  } else {
    run_octets<F>(a, base, row, c, x, lane, begin, by);
  }
}

template <typename F, int kTiles>
__global__ void __launch_bounds__(kThreads) grouped_kernel(GroupedArgs a) {
  launch_dependents();
  grid_dependency_wait();
  if (static_cast<int>(blockIdx.y) >= *a.pairs.n_tiles) return;
  const std::int32_t* tile = a.pairs.tiles + 3 * blockIdx.y;
  const int expert = tile[0], first = tile[1], count = tile[2];
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  constexpr bool kShares = kTiles == kFewTiles;
  const int warp = threadIdx.x / kWarp, begin = kShares ? warp : 0, by = kShares ? kWarps : 1;
  const int row = (blockIdx.x * kBlockRows<kTiles> + (kShares ? 0 : warp * kWarpRows)) / (a.half > 0 ? 2 : 1);
  const std::int64_t base = static_cast<std::int64_t>(expert) * a.n_out;
  const __nv_bfloat16* x[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int slot = first + min(8 * i + g, count - 1);
    const std::int64_t from = a.by_slot ? slot : a.pairs.order[slot] / a.n_used;
    x[i] = a.x + from * a.k;
  }
  float c[kTiles][4] = {};
  run_rows<F>(a, base, row, c, x, lane, begin, by);
  if constexpr (kShares) {
    __shared__ float4 sums[kWarps][kWarp];
    sums[warp][lane] = {c[0][0], c[0][1], c[0][2], c[0][3]};
    __syncthreads();
    if (warp != 0) return;
    for (int w = 1; w < kWarps; ++w) {
      const float4 other = sums[w][lane];
      c[0][0] += other.x, c[0][1] += other.y, c[0][2] += other.z, c[0][3] += other.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int slot = first + 8 * i + 2 * t + j;
      if (slot >= first + count) continue;
      if (a.half > 0) {
        store_gated(a, expert, slot, row + g, c[i][j], c[i][j + 2]);
      } else {
        store(a, expert, slot, row + g, c[i][j]);
        store(a, expert, slot, row + g + kOctetRows, c[i][j + 2]);
      }
    }
}

constexpr int kCombineThreads = 256, kCombineWarps = kCombineThreads / kWarp;

// One thread block per row.
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(CombineExpertsCuda a) {
  __shared__ std::int32_t slots[kMaxExpertsUsedCuda];
  __shared__ float shares[kMaxExpertsUsedCuda], squares[kCombineWarps];
  launch_dependents();
  grid_dependency_wait();
  const std::int64_t row = blockIdx.x;
  const std::int32_t* experts = a.experts + row * a.n_used;
  if (static_cast<int>(threadIdx.x) < a.n_used) {  // to where it is by ascending expert
    int at = 0;
    for (int i = 0; i < a.n_used; ++i) at += experts[i] < experts[threadIdx.x] ? 1 : 0;
    slots[at] = a.slots[row * a.n_used + threadIdx.x];
    shares[at] = a.shares[row * a.n_used + threadIdx.x];
  }
  __syncthreads();
  float sum = 0;
  for (int j = threadIdx.x; j < a.hidden; j += kCombineThreads) {
    float v = a.partial == nullptr ? a.residual[row * a.hidden + j] : 0.0f;
    for (int i = 0; i < a.n_used; ++i)
      if (slots[i] >= 0) v += shares[i] * a.y[static_cast<std::int64_t>(slots[i]) * a.hidden + j];
    (a.partial == nullptr ? a.residual : a.partial)[row * a.hidden + j] = v;
    if (a.x_next == nullptr) continue;
    static_cast<__nv_bfloat16*>(a.x_next)[row * a.hidden + j] = __float2bfloat16_rn(v * a.norm_weight[j]);
    sum += v * v;
  }
  if (a.x_next == nullptr) return;
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) squares[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (int w = 0; w < kCombineWarps; ++w) sum += squares[w];
  a.sums[row] = sum;
}

constexpr int kOneWarps = 16, kOneThreads = kOneWarps * kWarp;

// One row of x in each of its pairs: 16 rows of w a thread block, the warps divided among the pairs and then the columns.
template <typename F>
__global__ void __launch_bounds__(kOneThreads) combined_kernel(GroupedArgs a, CombineExpertsCuda to) {
  __shared__ float sums[kOneWarps][kWarpRows];
  __shared__ int order[kMaxExpertsUsedCuda];  // of pairs, by expert
  launch_dependents();
  grid_dependency_wait();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, tid = static_cast<int>(threadIdx.x);
  const int row = blockIdx.x * kWarpRows, parts = kOneWarps / to.n_used, pair = warp / parts;
  if (tid < to.n_used) {
    int at = 0;
    for (int i = 0; i < to.n_used; ++i) at += to.experts[i] < to.experts[tid] ? 1 : 0;
    order[at] = tid;
  }
  if (pair < to.n_used) {
    const __nv_bfloat16* const x[1] = {a.x + static_cast<std::int64_t>(to.slots[pair]) * a.k};
    float c[1][4] = {};
    run_rows<F>(a, static_cast<std::int64_t>(to.experts[pair]) * a.n_out, row, c, x, lane, warp % parts, parts);
    if (lane % 4 == 0) sums[warp][lane / 4] = c[0][0], sums[warp][lane / 4 + kOctetRows] = c[0][2];
  }
  __syncthreads();
  if (tid >= kWarpRows) return;
  float square = 0;
  if (row + tid < a.n_out) {
    float v = to.residual[row + tid];
    for (int i = 0; i < to.n_used; ++i) {
      const int at = order[i];
      float y = a.bias == nullptr ? 0.0f : a.bias[static_cast<std::int64_t>(to.experts[at]) * a.n_out + row + tid];
      for (int part = 0; part < parts; ++part) y += sums[at * parts + part][tid];
      v += to.shares[at] * y;
    }
    to.residual[row + tid] = v;
    static_cast<__nv_bfloat16*>(to.x_next)[row + tid] = __float2bfloat16_rn(v * to.norm_weight[row + tid]);
    square = v * v;
  }
  for (int d = kWarpRows / 2; d > 0; d /= 2) square += __shfl_xor_sync(0xffffu, square, d);
  if (tid == 0) to.sums[blockIdx.x] = square;
}

GroupedArgs args_of(const GroupedGemmCuda& g, const SortedPairs& pairs) {
  return {.x = static_cast<const __nv_bfloat16*>(g.x),
          .by_slot = g.by_slot,
          .y_f32 = g.y_f32,
          .n_used = g.n_used,
          .k = static_cast<int>(g.w.n_in),
          .n_out = static_cast<int>(g.w.n_out / g.n_experts),
          .w = g.w.values,
          .octet_bytes = is_quantised(g.w.dtype) ? static_cast<std::int64_t>(g.w.octet_bytes()) : 0,
          .bias = g.bias,
          .y = g.y,
          .pairs = pairs};
}

template <typename Function>
void with_any_format(DType dtype, const Function& f) {
  is_quantised(dtype) ? with_format(dtype, f) : f(Bf16Format{});
}

template <int kTiles>
void launch_grouped(const GroupedGemmCuda& g, const GroupedArgs& args, const CudaContext& context) {
  const int block = kBlockRows<kTiles>;
  const dim3 grid((args.n_out + block - 1) / block, most_tiles(g.n_pairs, g.n_experts, args.pairs.tile_rows));
  with_any_format(g.w.dtype, [&]<typename F>(F) {
    launch(context, "grouped_gemm", grouped_kernel<F, kTiles>, grid, dim3(kThreads), 0, args);
  });
}

void launch_grouped(const GroupedGemmCuda& g, const GroupedArgs& args, const CudaContext& context) {
  args.pairs.tile_rows == 8 * kFewTiles ? launch_grouped<kFewTiles>(g, args, context)
                                        : launch_grouped<kManyTiles>(g, args, context);
}

}  // namespace

std::int32_t expert_tile_rows(std::int32_t n_pairs, std::int32_t n_experts) {
  return 8 * (n_pairs > 8 * n_experts ? kManyTiles : kFewTiles);
}

void grouped_gemm_cuda(const GroupedGemmCuda& g, const SortedPairs& pairs, const CudaContext& context) {
  launch_grouped(g, args_of(g, pairs), context);
}

void grouped_swiglu_cuda(const GroupedGemmCuda& g, const float* scales, float limit, const SortedPairs& pairs,
                         const CudaContext& context) {
  GroupedArgs args = args_of(g, pairs);
  args.half = args.n_out / 2, args.limit = limit, args.scales = scales;
  launch_grouped(g, args, context);
}

void combine_experts_cuda(const CombineExpertsCuda& c, std::int32_t n, const CudaContext& context) {
  launch(context, "combine_experts", combine_kernel, dim3(static_cast<unsigned>(n)), dim3(kCombineThreads), 0, c);
}

std::int32_t combined_parts(std::int32_t hidden) {
  return (hidden + kWarpRows - 1) / kWarpRows;
}

void grouped_gemm_combined_cuda(const GroupedGemmCuda& g, const CombineExpertsCuda& c, const CudaContext& context) {
  const dim3 grid(static_cast<unsigned>(combined_parts(c.hidden)));
  with_any_format(g.w.dtype, [&]<typename F>(F) {
    launch(context, "grouped_gemm_combined", combined_kernel<F>, grid, dim3(kOneThreads), 0, args_of(g, {}), c);
  });
}

}  // namespace mneme
