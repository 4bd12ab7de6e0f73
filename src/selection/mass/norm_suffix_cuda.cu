// Sums of squares of stretches, by all; then one block finds the stretch in which the rule is met, and the token in it.
#include <algorithm>

#include "src/kernels/attention_mass_cuda.h"
#include "src/kernels/cuda_common.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kStretch = 256, kThreads = 256, kFindThreads = 1024;

struct Args {
  NormSuffixCuda a;
  int first, n_stretches;
  double* sums;    // [n_heads][n_stretches + 2]: of stretches, then of suffixes of them; [n_stretches + 1]: of sinks
  double* roots;   // [n_heads][n_stretches + 2]: of the suffixes' sums
  double* means;   // [n_stretches]: of the roots, over heads
  double* inside;  // [n_heads][kStretch]: roots of the sums of suffixes that begin within one stretch
};

__device__ __forceinline__ double square(const Args& p, int head, int token) {
  float v = p.a.mass[head * p.a.stride + token];
  if (p.a.lse != nullptr) v = exp2f(v - p.a.lse[head] * kLog2e);
  return static_cast<double>(v) * static_cast<double>(v);
}
__device__ __forceinline__ double warp_sum(double v) {
#pragma unroll
  for (int i = kWarp / 2; i > 0; i /= 2) v += __shfl_xor_sync(~0u, v, i);
  return v;
}
// Over the lanes from this one on.
__device__ __forceinline__ double suffix_sum(double v) {
#pragma unroll
  for (int i = 1; i < kWarp; i *= 2) {
    const double other = __shfl_down_sync(~0u, v, i);
    if (static_cast<int>(threadIdx.x) % kWarp + i < kWarp) v += other;
  }
  return v;
}

// A warp a (stretch, head); the last one has the sinks.
__global__ void __launch_bounds__(kThreads) squares_kernel(Args p) {
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % kWarp, stretch = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp,
            head = blockIdx.y;
  if (stretch > p.n_stretches) return;
  const bool sinks = stretch == p.n_stretches;
  const int begin = sinks ? 0 : p.first + stretch * kStretch,
            end = sinks ? (p.a.sink_in_norm ? p.first : 0) : min(p.a.n, begin + kStretch);
  double sum = 0;
  for (int i = begin + lane; i < end; i += kWarp) sum += square(p, head, i);
  sum = warp_sum(sum);
  if (lane == 0) p.sums[static_cast<std::int64_t>(head) * (p.n_stretches + 2) + (sinks ? stretch + 1 : stretch)] = sum;
}

// Over heads, in their order.
__device__ __forceinline__ double mean_of(const double* roots, int n_heads, std::int64_t stride) {
  double sum = 0;
#pragma unroll 8
  for (int h = 0; h < n_heads; ++h) sum += roots[h * stride];
  return sum / static_cast<double>(n_heads);
}

// Suffix sums of a head's n numbers, all with `after`; a warp's. number(i) is asked for a step ahead.
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

__global__ void __launch_bounds__(kFindThreads) find_kernel(Args p) {
  __shared__ int found[2];
  let_next_start();
  wait_for_previous();
  const int warp = threadIdx.x / kWarp, n_warps = kFindThreads / kWarp;
  const int n = p.n_stretches, heads = p.a.n_heads, stride = n + 2;
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
  const int begin = p.first + found[0] * kStretch, end = min(p.a.n, begin + kStretch);
  for (int head = warp; head < heads; head += n_warps) {
    double* inside = p.inside + static_cast<std::int64_t>(head) * kStretch;
    suffix_sums(
        kStretch, p.sums[static_cast<std::int64_t>(head) * stride + found[0] + 1],
        [&](int i) { return begin + i < end ? square(p, head, begin + i) : 0.0; },
        [&](int i, double v) { inside[i] = sqrt(v); });
  }
  __syncthreads();
  const int at = threadIdx.x;
  if (at < kStretch && begin + at < end && enough(mean_of(p.inside + at, heads, kStretch))) atomicMax(&found[1], at);
  __syncthreads();
  if (threadIdx.x == 0) *p.a.result = begin + found[1];
}

int stretches_of(std::int32_t n) {
  return (n + kStretch - 1) / kStretch;
}

}  // namespace

std::size_t norm_suffix_scratch_bytes(std::int32_t n_heads, std::int32_t n) {
  const auto heads = static_cast<std::size_t>(n_heads), stretches = static_cast<std::size_t>(stretches_of(n));
  return (heads * (2 * (stretches + 2) + kStretch) + stretches) * sizeof(double);
}

void norm_suffix_cuda(const NormSuffixCuda& a, const CudaContext& context) {
  Args p{};
  p.a = a;
  p.first = std::min(a.sink, a.n);
  p.n_stretches = stretches_of(a.n - p.first);
  const std::int64_t each = static_cast<std::int64_t>(a.n_heads) * (p.n_stretches + 2);
  p.sums = reinterpret_cast<double*>(a.scratch);
  p.roots = p.sums + each;
  p.inside = p.roots + each;
  p.means = p.inside + static_cast<std::int64_t>(a.n_heads) * kStretch;
  constexpr int kWarps = kThreads / kWarp;
  launch(context, "norm_squares", squares_kernel,
         dim3(static_cast<unsigned>(p.n_stretches / kWarps + 1), static_cast<unsigned>(a.n_heads)), dim3(kThreads), 0,
         p);
  launch(context, "norm_suffix", find_kernel, dim3(1), dim3(kFindThreads), 0, p);
}

}  // namespace mneme
