// A warp multiplies 16 rows of an expert's matrix with 8 kTiles rows of x. Columns go to lanes in runs of eight, of w
// and of x alike: a dot product does not depend on their order, and so both load 16 bytes straight into fragments.
#include "src/cuda/common.cuh"
#include "src/ops/experts/grouped_gemm_cuda.h"
#include "src/ops/gemm/quant.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kWarpRows = 16, kBlockRows = kWarps * kWarpRows;  // of w
constexpr int kStep = 32;                                       // columns, eight a lane of four
constexpr int kFewTiles = 1, kManyTiles = 4;                    // of eight rows of x
constexpr std::uint32_t kOnes = 0x3f803f80u;                    // two bf16

// Eight values of a row as pairs of bf16, to be multiplied by `scale`, and `minimum` to be added to each.
struct Values {
  std::uint32_t pairs[4];
  float scale, minimum;
};

struct Matrix {
  const std::byte* values;
  const __half* scales;
  std::int64_t row_bytes, scale_stride;
};

template <DType kType>
__device__ __forceinline__ Values load_values(const Matrix& m, std::int64_t row, int step, int t) {
  const std::byte* from = m.values + row * m.row_bytes;
  const __half* scales = m.scales + row * m.scale_stride;
  Values v{{}, 1.0f, 0.0f};
  if constexpr (kType == DType::kBF16) {
    const uint4 x = load_stream(from + (step * kStep + t * 8) * 2);
    v.pairs[0] = x.x, v.pairs[1] = x.y, v.pairs[2] = x.z, v.pairs[3] = x.w;
  } else if constexpr (kType == DType::kQ8_0) {
    const uint2 x = __ldg(reinterpret_cast<const uint2*>(from + step / 2 * 64 + t * 16 + step % 2 * 8));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t word = (i < 2 ? x.x : x.y) >> (i % 2 * 16);
      v.pairs[i] = pack<__nv_bfloat16>(static_cast<float>(static_cast<std::int8_t>(word & 255)),
                                       static_cast<float>(static_cast<std::int8_t>(word >> 8 & 255)));
    }
    v.scale = __half2float(scales[step]);
  } else {
    constexpr float kMiddle = kType == DType::kQ4_0 ? 8.0f : 0.0f;
    const std::uint32_t word =
        __ldg(reinterpret_cast<const std::uint32_t*>(from + step / 4 * 64 + t * 16 + step % 4 * 4));
#pragma unroll
    for (int i = 0; i < 4; ++i)  // value e is nibble (e % 2) * 4 + e / 2
      v.pairs[i] = pack<__nv_bfloat16>(static_cast<float>(word >> (4 * i) & 15) - kMiddle,
                                       static_cast<float>(word >> (16 + 4 * i) & 15) - kMiddle);
    if constexpr (kType == DType::kQ4_0) {
      v.scale = __half2float(scales[step]);
    } else {
      v.scale = __half2float(scales[2 * step]);
      v.minimum = __half2float(scales[2 * step + 1]);
    }
  }
  return v;
}

struct Args {
  const __nv_bfloat16* x;
  bool by_slot, y_f32;
  int n_used, k, n_out;
  Matrix w;
  const float* bias;
  void* y;
  SortedPairs pairs;
};

__device__ __forceinline__ void store(const Args& a, int expert, int slot, int row, float value) {
  if (row >= a.n_out) return;
  if (a.bias != nullptr) value += a.bias[static_cast<std::int64_t>(expert) * a.n_out + row];
  const std::int64_t at = static_cast<std::int64_t>(slot) * a.n_out + row;
  if (a.y_f32)
    static_cast<float*>(a.y)[at] = value;
  else
    static_cast<__nv_bfloat16*>(a.y)[at] = __float2bfloat16_rn(value);
}

// c += the product of 32 columns.
template <DType kType>
__device__ __forceinline__ void multiply(float (&c)[4], const Values& low, const Values& high, const uint4& x) {
  if constexpr (kType == DType::kBF16) {
    mma<__nv_bfloat16>(c, low.pairs[0], high.pairs[0], low.pairs[1], high.pairs[1], x.x, x.y);
    mma<__nv_bfloat16>(c, low.pairs[2], high.pairs[2], low.pairs[3], high.pairs[3], x.z, x.w);
    return;
  }
  float block[4] = {};
  mma<__nv_bfloat16>(block, low.pairs[0], high.pairs[0], low.pairs[1], high.pairs[1], x.x, x.y);
  mma<__nv_bfloat16>(block, low.pairs[2], high.pairs[2], low.pairs[3], high.pairs[3], x.z, x.w);
  c[0] += low.scale * block[0], c[1] += low.scale * block[1];
  c[2] += high.scale * block[2], c[3] += high.scale * block[3];
  if constexpr (kType == DType::kQ4_1) {  // minima times the sums of x
    float sums[4] = {};
    mma<__nv_bfloat16>(sums, kOnes, kOnes, kOnes, kOnes, x.x, x.y);
    mma<__nv_bfloat16>(sums, kOnes, kOnes, kOnes, kOnes, x.z, x.w);
    c[0] += low.minimum * sums[0], c[1] += low.minimum * sums[1];
    c[2] += high.minimum * sums[2], c[3] += high.minimum * sums[3];
  }
}

template <DType kType, int kTiles>
__global__ void __launch_bounds__(kThreads) grouped_kernel(Args a) {
  launch_dependents();
  grid_dependency_wait();
  if (static_cast<int>(blockIdx.y) >= *a.pairs.n_tiles) return;
  const std::int32_t* tile = a.pairs.tiles + 3 * blockIdx.y;
  const int expert = tile[0], first = tile[1], count = tile[2];
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int row = blockIdx.x * kBlockRows + threadIdx.x / kWarp * kWarpRows + g;  // and the one eight below
  const std::int64_t base = static_cast<std::int64_t>(expert) * a.n_out;
  const std::int64_t low_row = base + min(row, a.n_out - 1), high_row = base + min(row + 8, a.n_out - 1);
  const __nv_bfloat16* x[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int slot = first + min(8 * i + g, count - 1);
    const std::int64_t from = a.by_slot ? slot : a.pairs.order[slot] / a.n_used;
    x[i] = a.x + from * a.k + t * 8;
  }
  float c[kTiles][4] = {};
#pragma unroll 4
  for (int step = 0; step < a.k / kStep; ++step) {
    const Values low = load_values<kType>(a.w, low_row, step, t), high = load_values<kType>(a.w, high_row, step, t);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      multiply<kType>(c[i], low, high, *reinterpret_cast<const uint4*>(x[i] + step * kStep));
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int of_tile = 8 * i + 2 * t + j % 2;
      if (of_tile < count) store(a, expert, first + of_tile, row + j / 2 * 8, c[i][j]);
    }
}

__device__ __forceinline__ float gated(float gate, float up, float limit) {
  if (limit == 0) return gate / (1.0f + __expf(-gate)) * up;
  // Compared so that NaN stays.
  const float g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
  return g / (1.0f + __expf(-1.702f * g)) * (u + 1.0f);
}

__global__ void __launch_bounds__(256)
    swiglu_kernel(const __nv_bfloat162* gate_up, std::int64_t total, int pairs, float limit, __nv_bfloat162* out) {
  launch_dependents();
  grid_dependency_wait();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (at >= total) return;
  const std::int64_t row = at / pairs, i = at % pairs;
  const float2 g = __bfloat1622float2(gate_up[row * 2 * pairs + i]),
               u = __bfloat1622float2(gate_up[(row * 2 + 1) * pairs + i]);
  out[at] = __floats2bfloat162_rn(gated(g.x, u.x, limit), gated(g.y, u.y, limit));
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
    float v = a.residual[row * a.hidden + j];
    for (int i = 0; i < a.n_used; ++i) v += shares[i] * a.y[static_cast<std::int64_t>(slots[i]) * a.hidden + j];
    a.residual[row * a.hidden + j] = v;
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

template <int kTiles>
void launch_grouped(const GroupedGemmCuda& g, const Args& args, dim3 grid, const CudaContext& context) {
  const auto run = [&](void (*kernel)(Args)) {
    launch(context, "grouped_gemm", kernel, grid, dim3(kThreads), 0, args);
  };
  switch (g.w.dtype) {
    case DType::kQ8_0:
      return run(grouped_kernel<DType::kQ8_0, kTiles>);
    case DType::kQ4_0:
      return run(grouped_kernel<DType::kQ4_0, kTiles>);
    case DType::kQ4_1:
      return run(grouped_kernel<DType::kQ4_1, kTiles>);
    default:
      return run(grouped_kernel<DType::kBF16, kTiles>);
  }
}

}  // namespace

std::int32_t expert_tile_rows(std::int32_t n_pairs, std::int32_t n_experts) {
  return 8 * (n_pairs > 8 * n_experts ? kManyTiles : kFewTiles);
}

void grouped_gemm_cuda(const GroupedGemmCuda& g, const SortedPairs& pairs, const CudaContext& context) {
  const int n_out = static_cast<int>(g.w.n_out / g.n_experts);
  const Args args{.x = static_cast<const __nv_bfloat16*>(g.x),
                  .by_slot = g.by_slot,
                  .y_f32 = g.y_f32,
                  .n_used = g.n_used,
                  .k = static_cast<int>(g.w.n_in),
                  .n_out = n_out,
                  .w = {g.w.values, reinterpret_cast<const __half*>(g.w.scales),
                        static_cast<std::int64_t>(g.w.value_bytes_per_row()), g.w.scale_stride()},
                  .bias = g.bias,
                  .y = g.y,
                  .pairs = pairs};
  const dim3 grid((n_out + kBlockRows - 1) / kBlockRows, most_tiles(g.n_pairs, g.n_experts, pairs.tile_rows));
  pairs.tile_rows == 8 * kFewTiles ? launch_grouped<kFewTiles>(g, args, grid, context)
                                   : launch_grouped<kManyTiles>(g, args, grid, context);
}

void expert_swiglu_cuda(const void* gate_up, std::int32_t n, std::int32_t ffn, float limit, void* out,
                        const CudaContext& context) {
  const std::int64_t total = std::int64_t{n} * (ffn / 2);
  launch(context, "expert_swiglu", swiglu_kernel, dim3(static_cast<unsigned>((total + 255) / 256)), dim3(256), 0,
         static_cast<const __nv_bfloat162*>(gate_up), total, ffn / 2, limit, static_cast<__nv_bfloat162*>(out));
}

void combine_experts_cuda(const CombineExpertsCuda& c, std::int32_t n, const CudaContext& context) {
  launch(context, "combine_experts", combine_kernel, dim3(static_cast<unsigned>(n)), dim3(kCombineThreads), 0, c);
}

}  // namespace mneme
