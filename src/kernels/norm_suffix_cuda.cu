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
  double* inside;  // [n_heads][kStretch]: of suffixes that begin within one stretch
};

__device__ __forceinline__ double square(float v) {
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
  const float* mass = p.a.mass + head * p.a.stride;
  double sum = 0;
  for (int i = begin + lane; i < end; i += kWarp) sum += square(mass[i]);
  sum = warp_sum(sum);
  if (lane == 0) p.sums[static_cast<std::int64_t>(head) * (p.n_stretches + 2) + (sinks ? stretch + 1 : stretch)] = sum;
}

// The mean over heads of the roots, in the order of the heads.
template <typename Of>
__device__ __forceinline__ double mean_root(int n_heads, Of&& of) {
  double sum = 0;
  for (int h = 0; h < n_heads; ++h) sum += sqrt(of(h));
  return sum / static_cast<double>(n_heads);
}

__global__ void __launch_bounds__(kFindThreads) find_kernel(Args p) {
  __shared__ int found;
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warps = kFindThreads / kWarp;
  const int n = p.n_stretches, heads = p.a.n_heads;
  const auto sums = [&](int head) { return p.sums + static_cast<std::int64_t>(head) * (n + 2); };
  for (int head = warp; head < heads; head += n_warps) {
    double* of = sums(head);
    double after = of[n + 1];  // the sinks are in all of them
    __syncwarp();
    if (lane == 0) of[n] = after;
    for (int end = n; end > 0; end -= kWarp) {
      const int at = end - kWarp + lane;
      const double v = suffix_sum(at >= 0 ? of[at] : 0.0) + after;
      after = __shfl_sync(~0u, v, 0);
      __syncwarp();
      if (at >= 0) of[at] = v;
    }
  }
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  const double whole = mean_root(heads, [&](int h) { return sums(h)[0]; });
  if (p.a.n <= p.first + 1 || !(whole > 0) || !(p.a.loss > 0)) {
    if (threadIdx.x == 0) *p.a.result = p.first;
    return;
  }
  const auto enough = [&](double mean) { return (whole - mean) / whole < static_cast<double>(p.a.loss); };
  for (int i = threadIdx.x; i < n; i += kFindThreads)
    if (enough(mean_root(heads, [&](int h) { return sums(h)[i]; }))) atomicMax(&found, i);
  __syncthreads();
  const int stretch = found, begin = p.first + stretch * kStretch, end = min(p.a.n, begin + kStretch);
  for (int head = warp; head < heads; head += n_warps) {
    const float* mass = p.a.mass + head * p.a.stride;
    double after = sums(head)[stretch + 1];
    for (int stop = kStretch; stop > 0; stop -= kWarp) {
      const int at = stop - kWarp + lane;
      const double v = suffix_sum(begin + at < end ? square(mass[begin + at]) : 0.0) + after;
      after = __shfl_sync(~0u, v, 0);
      p.inside[static_cast<std::int64_t>(head) * kStretch + at] = v;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  const int at = threadIdx.x;
  if (begin + at < end && at < kStretch &&
      enough(mean_root(heads, [&](int h) { return p.inside[static_cast<std::int64_t>(h) * kStretch + at]; })))
    atomicMax(&found, at);
  __syncthreads();
  if (threadIdx.x == 0) *p.a.result = begin + found;
}

int stretches_of(std::int32_t n) {
  return (n + kStretch - 1) / kStretch;
}

}  // namespace

std::size_t norm_suffix_scratch_bytes(std::int32_t n_heads, std::int32_t n) {
  return static_cast<std::size_t>(n_heads) * static_cast<std::size_t>(stretches_of(n) + 2 + kStretch) * sizeof(double);
}

void norm_suffix_cuda(const NormSuffixCuda& a, const CudaContext& context) {
  Args p{a, std::min(a.sink, a.n), 0, reinterpret_cast<double*>(a.scratch), nullptr};
  p.n_stretches = stretches_of(a.n - p.first);
  p.inside = p.sums + static_cast<std::int64_t>(a.n_heads) * (p.n_stretches + 2);
  constexpr int kWarps = kThreads / kWarp;
  launch(context, "norm_squares", squares_kernel,
         dim3(static_cast<unsigned>(p.n_stretches / kWarps + 1), static_cast<unsigned>(a.n_heads)), dim3(kThreads), 0,
         p);
  launch(context, "norm_suffix", find_kernel, dim3(1), dim3(kFindThreads), 0, p);
}

}  // namespace mneme
