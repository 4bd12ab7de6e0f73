// Routing of few rows in one launch: a warp has the logit of an expert, and the thread block that ends last ranks and
// sorts. A launch of its own for each of norm, logits, ranks and sort would cost more than their work.
#include "src/cuda/cluster.cuh"
#include "src/cuda/common.cuh"
#include "src/ops/experts/router_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kLineFloats = 32;                   // of a line of the L2 cache
constexpr int kHeld = kFewRoutedExperts / kWarp;  // logits of a lane
constexpr int kMaxPairs = kFewRoutedRows * kMaxExpertsUsedCuda;
static_assert(kFewRoutedRows <= kWarps && kMaxPairs <= kThreads);

// Requests a row of the router, which no other kernel writes, before the kernel before has ended.
__device__ __forceinline__ void prefetch_row(const float* row, int n, int lane) {
  for (int j = lane * kLineFloats; j < n; j += kWarp * kLineFloats)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + j));
}

__device__ __forceinline__ float4 four_of(const float* p, int at) {
  return reinterpret_cast<const float4*>(p)[at];
}

// The logit of one row and expert, and the row's scale, by one warp.
__device__ __forceinline__ float2 logit_and_scale(const RouterCuda& r, const float* x, const float* weights, int lane) {
  float dot = 0, squares = 0;
#pragma unroll 4
  for (int j = lane; j < r.hidden / 4; j += kWarp) {
    const float4 v = four_of(x, j), norm = four_of(r.norm_weight, j), w = four_of(weights, j);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    dot += v.x * norm.x * w.x + v.y * norm.y * w.y + v.z * norm.z * w.z + v.w * norm.w * w.w;
  }
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(r.hidden) + r.eps);
  return {warp_sum(dot) * scale, scale};
}

// One warp: the best n_used of a row's logits, into `experts` and `shares` of the row.
__device__ void rank_row(const RouterCuda& r, const float* logits, std::int32_t* experts, float* shares) {
  const int lane = threadIdx.x % kWarp;
  float values[kHeld];
  std::uint32_t keys[kHeld];  // 0: taken, or none
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int e = i * kWarp + lane;
    values[i] = e < r.n_experts ? __ldcg(logits + e) : 0.0f;
    keys[i] = e < r.n_experts ? sort_key(isnan(values[i]) ? -INFINITY : values[i]) : 0;
  }
  float largest = 0, used = 0, mine = 0;
  for (int k = 0; k < r.n_used; ++k) {
    std::uint32_t key = 0;
    float value = 0;
    int at = kFewRoutedExperts;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (keys[i] > key) key = keys[i], value = values[i], at = i * kWarp + lane;
    std::uint32_t best = key;
    for (int d = kWarp / 2; d > 0; d /= 2) best = max(best, __shfl_xor_sync(~0u, best, d));
    int expert = key == best ? at : kFewRoutedExperts;
    for (int d = kWarp / 2; d > 0; d /= 2) expert = min(expert, __shfl_xor_sync(~0u, expert, d));
    value = __shfl_sync(~0u, value, expert % kWarp);
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (i * kWarp + lane == expert) keys[i] = 0;
    if (k == 0) largest = value;
    const float share = expf(value - largest);
    used += share;
    if (lane == k) mine = share;
    if (lane == k) experts[k] = expert;
  }
  if (!r.normalise) {
    used = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) used += i * kWarp + lane < r.n_experts ? expf(values[i] - largest) : 0.0f;
    used = warp_sum(used);
  }
  if (lane < r.n_used) shares[lane] = mine / used;
}

// A thread a pair. An expert is one tile: it has at most kFewRoutedRows pairs.
__device__ void sort_few(const std::int32_t* experts, int n_pairs, int n_experts, const SortedPairs& out) {
  __shared__ int sorted[kMaxPairs];  // a pair's expert; of those that are not sorted, n_experts
  __shared__ bool begins[kMaxPairs];
  const int p = static_cast<int>(threadIdx.x);
  int mine = n_experts;
  if (p < n_pairs) {
    mine = experts[p] - out.first_expert;
    if (mine < 0 || mine > n_experts) mine = n_experts;
    sorted[p] = mine;
  }
  __syncthreads();
  int less = 0, before = 0, same = 0;
  for (int q = 0; p < n_pairs && q < n_pairs; ++q) {
    less += sorted[q] < mine ? 1 : 0;
    same += sorted[q] == mine ? 1 : 0;
    before += sorted[q] == mine && q < p ? 1 : 0;
  }
  const bool begin = mine < n_experts && before == 0;
  if (p < n_pairs) begins[p] = begin;
  const int n_tiles = __syncthreads_count(begin ? 1 : 0);
  if (p == 0) *out.n_tiles = n_tiles;
  if (p >= n_pairs) return;
  out.slots[p] = mine < n_experts ? less + before : -1;
  if (mine < n_experts) out.order[less + before] = p;
  if (!begin) return;
  int tile = 0;
  for (int q = 0; q < n_pairs; ++q) tile += begins[q] && sorted[q] < mine ? 1 : 0;
  out.tiles[3 * tile] = mine, out.tiles[3 * tile + 1] = less, out.tiles[3 * tile + 2] = same;
}

// Blocks of eight experts by rows.
__global__ void __launch_bounds__(kThreads)
    route_few_kernel(RouterCuda r, const float* x, int n_sorted, RoutedRows out, SortedPairs sorted) {
  __shared__ bool last;
  __shared__ std::int32_t experts[kMaxPairs];
  launch_dependents();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, row = blockIdx.y, n = gridDim.y;
  const int expert = blockIdx.x * kWarps + warp;
  const float* weights = r.weights + static_cast<std::int64_t>(min(expert, r.n_experts - 1)) * r.hidden;
  prefetch_row(weights, r.hidden, lane);
  grid_dependency_wait();
  const float2 v = logit_and_scale(r, x + static_cast<std::int64_t>(row) * r.hidden, weights, lane);
  if (lane == 0 && expert < r.n_experts) {
    out.logits[row * r.n_experts + expert] = v.x + (r.bias == nullptr ? 0.0f : r.bias[expert]);
    if (expert == 0) out.scales[row] = v.y;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const int blocks = static_cast<int>(gridDim.x * gridDim.y);
    last = atomicAdd(out.arrived, 1) == blocks - 1;
    if (last) *out.arrived = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (warp < n) rank_row(r, out.logits + warp * r.n_experts, experts + warp * r.n_used, out.shares + warp * r.n_used);
  __syncthreads();
  const int n_pairs = n * r.n_used;
  if (static_cast<int>(threadIdx.x) < n_pairs) out.experts[threadIdx.x] = experts[threadIdx.x];
  sort_few(experts, n_pairs, n_sorted, sorted);
}

}  // namespace

void route_few_cuda(const RouterCuda& router, const float* x, std::int32_t n, std::int32_t n_sorted,
                    const RoutedRows& out, const SortedPairs& sorted, const CudaContext& context) {
  const dim3 grid((router.n_experts + kWarps - 1) / kWarps, n);
  launch(context, "route_few", route_few_kernel, grid, dim3(kThreads), 0, router, x, n_sorted, out, sorted);
}

}  // namespace mneme
