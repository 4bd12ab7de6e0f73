#include <algorithm>

#include "src/cuda/common.cuh"
#include "src/ops/experts/router_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kSortThreads = 1024, kSortWarps = kSortThreads / kWarp;

// kRows rows of x, normed, in shared memory; one warp per expert.
template <int kRows>
__global__ void __launch_bounds__(kThreads) logits_kernel(RouterCuda r, const float* x, int n, float* logits) {
  extern __shared__ float normed[];  // [kRows, hidden]
  __shared__ float squares[kWarps];
  launch_dependents();
  grid_dependency_wait();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, first = blockIdx.x * kRows;
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = min(first + i, n - 1);
    float sum = 0;
    for (int j = threadIdx.x; j < r.hidden; j += kThreads) {
      const float v = x[row * r.hidden + j];
      normed[i * r.hidden + j] = v * r.norm_weight[j];
      sum += v * v;
    }
    sum = warp_sum(sum);
    if (lane == 0) squares[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += squares[w];
    const float scale = rsqrtf(sum / static_cast<float>(r.hidden) + r.eps);
    for (int j = threadIdx.x; j < r.hidden; j += kThreads) normed[i * r.hidden + j] *= scale;
    __syncthreads();
  }
  const int expert = blockIdx.y * kWarps + warp;
  if (expert >= r.n_experts) return;
  const float* weights = r.weights + static_cast<std::int64_t>(expert) * r.hidden;
  float dots[kRows] = {};
  for (int j = lane; j < r.hidden; j += kWarp) {
    const float w = weights[j];
#pragma unroll
    for (int i = 0; i < kRows; ++i) dots[i] += w * normed[i * r.hidden + j];
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float dot = warp_sum(dots[i]);
    if (lane == 0 && first + i < n)
      logits[static_cast<std::int64_t>(first + i) * r.n_experts + expert] =
          dot + (r.bias == nullptr ? 0.0f : r.bias[expert]);
  }
}

// One warp per row: n_used times the best of those that are left.
__global__ void __launch_bounds__(kWarp)
    top_kernel(RouterCuda r, const float* logits, std::int32_t* experts, float* shares) {
  __shared__ float values[kMaxExpertsCuda];
  __shared__ bool taken[kMaxExpertsCuda];
  launch_dependents();
  grid_dependency_wait();
  const int lane = threadIdx.x;
  const std::int64_t row = blockIdx.x;
  for (int e = lane; e < r.n_experts; e += kWarp) {
    values[e] = logits[row * r.n_experts + e];
    taken[e] = false;
  }
  __syncwarp();
  float largest = 0, used = 0;
  for (int i = 0; i < r.n_used; ++i) {
    float best = -INFINITY;
    int at = r.n_experts;
    for (int e = lane; e < r.n_experts; e += kWarp) {
      const float v = isnan(values[e]) ? -INFINITY : values[e];
      if (!taken[e] && (at == r.n_experts || v > best)) best = v, at = e;
    }
    for (int d = kWarp / 2; d > 0; d /= 2) {
      const float other = __shfl_xor_sync(~0u, best, d);
      const int other_at = __shfl_xor_sync(~0u, at, d);
      const bool better = at == r.n_experts || other > best || (other == best && other_at < at);
      if (other_at < r.n_experts && better) best = other, at = other_at;
    }
    if (i == 0) largest = values[at];
    used += expf(values[at] - largest);
    if (lane == 0) {
      taken[at] = true;
      experts[row * r.n_used + i] = at;
    }
    __syncwarp();
  }
  float sum = used;
  if (!r.normalise) {
    sum = 0;
    for (int e = lane; e < r.n_experts; e += kWarp) sum += expf(values[e] - largest);
    sum = warp_sum(sum);
  }
  if (lane < r.n_used) {
    const int e = experts[row * r.n_used + lane];
    shares[row * r.n_used + lane] = expf(values[e] - largest) / sum;
  }
}

// Exclusive scan of n values in shared memory by one warp; values[n] becomes their sum.
__device__ void scan(int* values, int n) {
  int before = 0;
  for (int i = threadIdx.x; i - static_cast<int>(threadIdx.x) < n; i += kWarp) {
    const int v = i < n ? values[i] : 0, inclusive = warp_inclusive_scan(v);
    if (i < n) values[i] = before + inclusive - v;
    before += __shfl_sync(~0u, inclusive, kWarp - 1);
  }
  if (threadIdx.x == 0) values[n] = before;
}

// One thread block. A warp places the pairs of an expert in order.
__global__ void __launch_bounds__(kSortThreads)
    sort_kernel(const std::int32_t* experts, int n_pairs, int n_experts, SortedPairs out) {
  __shared__ int begins[kMaxExpertsCuda + 1], tiles[kMaxExpertsCuda + 1];
  launch_dependents();
  grid_dependency_wait();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int e = threadIdx.x; e < n_experts; e += kSortThreads) begins[e] = 0;
  __syncthreads();
  for (int p = threadIdx.x; p < n_pairs; p += kSortThreads) {
    const int e = experts[p] - out.first_expert;
    if (e >= 0 && e < n_experts)
      atomicAdd(&begins[e], 1);
    else
      out.slots[p] = -1;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < n_experts; e += kSortThreads)
    tiles[e] = (begins[e] + out.tile_rows - 1) / out.tile_rows;
  __syncthreads();
  if (warp == 0) scan(begins, n_experts), scan(tiles, n_experts);
  __syncthreads();
  for (int e = warp; e < n_experts; e += kSortWarps) {
    const int begin = begins[e], end = begins[e + 1];
    for (int at = begin, from = 0; at < end; from += kWarp) {
      const int p = from + lane;
      const bool mine = p < n_pairs && experts[p] - out.first_expert == e;
      const unsigned all = __ballot_sync(~0u, mine);
      const int to = at + __popc(all & ((1u << lane) - 1));
      if (mine) out.order[to] = p, out.slots[p] = to;
      at += __popc(all);
    }
    for (int i = lane; begin + i * out.tile_rows < end; i += kWarp) {
      std::int32_t* tile = out.tiles + 3 * (tiles[e] + i);
      tile[0] = e;
      tile[1] = begin + i * out.tile_rows;
      tile[2] = min(out.tile_rows, end - tile[1]);
    }
  }
  if (threadIdx.x == 0) *out.n_tiles = tiles[n_experts];
}

template <int kRows>
void launch_logits(const RouterCuda& r, const float* x, std::int32_t n, float* logits, const CudaContext& context) {
  static std::size_t allowed = kDefaultSharedBytes;
  const std::size_t bytes = sizeof(float) * kRows * r.hidden;
  allow_shared(logits_kernel<kRows>, bytes, allowed, "router_logits");
  const dim3 grid((n + kRows - 1) / kRows, (r.n_experts + kWarps - 1) / kWarps);
  launch(context, "router_logits", logits_kernel<kRows>, grid, dim3(kThreads), bytes, r, x, n, logits);
}

}  // namespace

void route_cuda(const RouterCuda& r, const float* x, std::int32_t n, float* logits, std::int32_t* experts,
                float* shares, const CudaContext& context) {
  constexpr std::int32_t kFewRows = 8;  // beyond, a thread block reads its experts once for four rows
  n <= kFewRows ? launch_logits<1>(r, x, n, logits, context) : launch_logits<4>(r, x, n, logits, context);
  launch(context, "router_top", top_kernel, dim3(static_cast<unsigned>(n)), dim3(kWarp), 0, r, logits, experts, shares);
}

std::int32_t most_tiles(std::int32_t n_pairs, std::int32_t n_experts, std::int32_t tile_rows) {
  return std::min(n_pairs, n_pairs / tile_rows + n_experts);
}

void sort_pairs_cuda(const std::int32_t* experts, std::int32_t n_pairs, std::int32_t n_experts,
                     const SortedPairs& sorted, const CudaContext& context) {
  launch(context, "sort_pairs", sort_kernel, dim3(1), dim3(kSortThreads), 0, experts, n_pairs, n_experts, sorted);
}

}  // namespace mneme
