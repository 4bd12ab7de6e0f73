// All thread blocks sum squares of segments; then one block finds the segment in which the rule is met, and the token
// in it.
#include <algorithm>

#include "src/cuda/common.cuh"
#include "src/cuda/memory.h"
#include "src/selection/mass/attention_mass_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kSegment = 256, kThreads = 256, kFindThreads = 1024;

struct SuffixArgs {
  NormSuffixCuda a;
  int first, n_segments;
  double* sums;    // [n_heads][n_segments + 2]: of segments, then of suffixes of them; [n_segments + 1]: of sinks
  double* roots;   // [n_heads][n_segments + 2]: square roots of the suffixes' sums
  double* means;   // [n_segments]: of the roots, over heads
  double* inside;  // [n_heads][kSegment]: roots of the sums of suffixes that start within one segment
};

__device__ __forceinline__ double square(const SuffixArgs& p, int head, int token) {
  float v = p.a.mass[head * p.a.stride + token];
  if (p.a.lse != nullptr) v = exp2f(v - p.a.lse[head] * kLog2e);
  return static_cast<double>(v) * static_cast<double>(v);
}
// Suffix scan over the lanes: the sum from this lane on.
__device__ __forceinline__ double suffix_sum(double v) {
#pragma unroll
  for (int i = 1; i < kWarp; i *= 2) {
    const double other = __shfl_down_sync(~0u, v, i);
    if (static_cast<int>(threadIdx.x) % kWarp + i < kWarp) v += other;
  }
  return v;
}

// One warp per (segment, head); the last one handles the sinks.
__global__ void __launch_bounds__(kThreads) squares_kernel(SuffixArgs p) {
  launch_dependents();
  grid_dependency_wait();
  const int lane = threadIdx.x % kWarp, segment = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp,
            head = blockIdx.y;
  if (segment > p.n_segments) return;
  const bool sinks = segment == p.n_segments;
  const int begin = sinks ? 0 : p.first + segment * kSegment,
            end = sinks ? (p.a.sink_in_norm ? p.first : 0) : min(p.a.n, begin + kSegment);
  double sum = 0;
  for (int i = begin + lane; i < end; i += kWarp) sum += square(p, head, i);
  sum = warp_sum(sum);
  if (lane == 0) p.sums[static_cast<std::int64_t>(head) * (p.n_segments + 2) + (sinks ? segment + 1 : segment)] = sum;
}

// Mean over heads, in order.
__device__ __forceinline__ double mean_of(const double* roots, int n_heads, std::int64_t stride) {
  double sum = 0;
#pragma unroll 8
  for (int h = 0; h < n_heads; ++h) sum += roots[h * stride];
  return sum / static_cast<double>(n_heads);
}

// Suffix sums of a head's n values, each plus `after`, by one warp. number(i) is prefetched one step ahead.
template <typename Number, typename Put>
__device__ __forceinline__ void suffix_sums(int n, double after, Number&& number, Put&& put) {
  const int lane = threadIdx.x % kWarp;
  const auto of = [&](int end) { return end - kWarp + lane >= 0 ? number(end - kWarp + lane) : 0.0; };
  double next = of(n);
  for (int end = n; end > 0; end -= kWarp) {
    const double v = suffix_sum(next) + after;
    if (end > kWarp) next = of(end - kWarp);
    after = __shfl_sync(~0u, v, 0);
    if (end - kWarp + lane >= 0) put(end - kWarp + lane, v);
  }
}

__global__ void __launch_bounds__(kFindThreads) find_kernel(SuffixArgs p) {
  __shared__ int found[2];
  launch_dependents();
  grid_dependency_wait();
  const int warp = threadIdx.x / kWarp, n_warps = kFindThreads / kWarp;
  const int n = p.n_segments, heads = p.a.n_heads, stride = n + 2;
  for (int head = warp; head < heads; head += n_warps) {
    double *sums = p.sums + static_cast<std::int64_t>(head) * stride,
           *roots = p.roots + static_cast<std::int64_t>(head) * stride;
    const double sinks = sums[n + 1];  // in all of them
    if (threadIdx.x % kWarp == 0) sums[n] = sinks;
    suffix_sums(
        n, sinks, [&](int i) { return sums[i]; }, [&](int i, double v) { sums[i] = v, roots[i] = sqrt(v); });
  }
  if (threadIdx.x < 2) found[threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += kFindThreads) p.means[i] = mean_of(p.roots + i, heads, stride);
  __syncthreads();
  const double whole = n > 0 ? p.means[0] : 0.0;
  if (p.a.n <= p.first + 1 || !(whole > 0) || !(p.a.loss > 0)) {
    if (threadIdx.x == 0) *p.a.result = p.first;
    return;
  }
  const auto enough = [&](double mean) { return (whole - mean) / whole < static_cast<double>(p.a.loss); };
  for (int i = threadIdx.x; i < n; i += kFindThreads)
    if (enough(p.means[i])) atomicMax(&found[0], i);
  __syncthreads();
  const int begin = p.first + found[0] * kSegment, end = min(p.a.n, begin + kSegment);
  for (int head = warp; head < heads; head += n_warps) {
    double* inside = p.inside + static_cast<std::int64_t>(head) * kSegment;
    suffix_sums(
        kSegment, p.sums[static_cast<std::int64_t>(head) * stride + found[0] + 1],
        [&](int i) { return begin + i < end ? square(p, head, begin + i) : 0.0; },
        [&](int i, double v) { inside[i] = sqrt(v); });
  }
  __syncthreads();
  const int at = threadIdx.x;
  if (at < kSegment && begin + at < end && enough(mean_of(p.inside + at, heads, kSegment))) atomicMax(&found[1], at);
  __syncthreads();
  if (threadIdx.x == 0) *p.a.result = begin + found[1];
}

// Arguments for n tokens behind the sinks, and their arrays.
SuffixArgs args_of(const NormSuffixCuda& a, int n) {
  SuffixArgs p{};
  p.a = a;
  p.first = a.n - n;
  p.n_segments = (n + kSegment - 1) / kSegment;
  return p;
}
ArenaLayout arrays_of(SuffixArgs& p) {
  const auto heads = static_cast<std::size_t>(p.a.n_heads), segments = static_cast<std::size_t>(p.n_segments);
  ArenaLayout arrays;
  arrays.add(p.sums, heads * (segments + 2) * sizeof(double));
  arrays.add(p.roots, heads * (segments + 2) * sizeof(double));
  arrays.add(p.means, segments * sizeof(double));
  arrays.add(p.inside, heads * kSegment * sizeof(double));
  return arrays;
}

}  // namespace

std::size_t norm_suffix_scratch_bytes(std::int32_t n_heads, std::int32_t n) {
  SuffixArgs p = args_of({.n_heads = n_heads, .n = n}, n);
  return arrays_of(p).total();
}

void norm_suffix_cuda(const NormSuffixCuda& a, const CudaContext& context) {
  SuffixArgs p = args_of(a, a.n - std::min(a.sink, a.n));
  arrays_of(p).assign(a.scratch);
  launch(context, "norm_squares", squares_kernel, grid_of(p.n_segments / (kThreads / kWarp) + 1, a.n_heads), kThreads,
         0, p);
  launch(context, "norm_suffix", find_kernel, dim3(1), kFindThreads, 0, p);
}

}  // namespace mneme
