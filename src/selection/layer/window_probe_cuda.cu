#include "src/cuda/block_reduce.cuh"
#include "src/cuda/memory.h"
#include "src/selection/layer/window_probe_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kChannels = 2 * kWarp;  // channels of a thread block over rows: two per lane
constexpr int kBiasRows = 4;          // rows per warp

int blocks_of(int n, int each) {
  return (n + each - 1) / each;
}

struct ProbeArgs : WindowProbes {
  int width;                       // heads * D
  float *window_mean, *window_m2;  // [windows, width]; after the merge: of all rows up to it, mean and variance
  float* bias;                     // [rows]
  double* variances;               // [windows, blocks of kThreads channels]: partial sums

  explicit ProbeArgs(const WindowProbes& w) : WindowProbes(w), width(w.n_heads * w.head_dim) {}
  ArenaLayout arrays() {
    const auto windows = static_cast<std::size_t>(n_windows), values = windows * static_cast<std::size_t>(width);
    ArenaLayout arrays;
    arrays.add(window_mean, values * sizeof(float));
    arrays.add(window_m2, values * sizeof(float));
    arrays.add(bias, static_cast<std::size_t>(n_rows) * sizeof(float));
    arrays.add(variances, windows * static_cast<std::size_t>(blocks_of(width, kThreads)) * sizeof(double));
    return arrays;
  }
};

__device__ __forceinline__ float2 pair_at(const void* x, std::int64_t row, int width, int channel) {
  const auto* p = static_cast<const __nv_bfloat16*>(x) + row * width + channel;
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(p));
}

// Reduces per-channel values over the block's warps; all warps get the result.
__device__ float2 over_warps(float2 v, float2 (&parts)[kWarps][kWarp]) {
  const int lane = threadIdx.x % kWarp;
  __syncthreads();
  parts[threadIdx.x / kWarp][lane] = v;
  __syncthreads();
  float2 sum = {0, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum.x += parts[w][lane].x, sum.y += parts[w][lane].y;
  return sum;
}

// The lane's first channel; lanes behind the last one repeat it.
__device__ __forceinline__ int lane_channel(int width) {
  return min(static_cast<int>(blockIdx.x) * kChannels + 2 * (static_cast<int>(threadIdx.x) % kWarp), width - 2);
}

// Mean and squared deviations of a window's new rows: a thread block has kChannels channels of one window.
__global__ void __launch_bounds__(kThreads) moments_kernel(ProbeArgs p) {
  __shared__ float2 parts[kWarps][kWarp];
  grid_dependency_wait();
  const int width = p.width, channel = lane_channel(width);
  const SelectionWindow w = p.windows[blockIdx.y];
  const int first = max(w.row, p.known), end = w.row + w.n_rows, warp = threadIdx.x / kWarp;
  if (first >= end) return;
  const auto over_rows = [&](auto&& add) {
    float2 sum = {0, 0};
#pragma unroll 8
    for (int i = first + warp; i < end; i += kWarps) add(sum, pair_at(p.x, i, width, channel));
    return over_warps(sum, parts);
  };
  const float2 sum = over_rows([](float2& of, float2 v) { of.x += v.x, of.y += v.y; });
  const auto n = static_cast<float>(end - first);
  const float2 mean = {sum.x / n, sum.y / n};
  const float2 square = over_rows(
      [&](float2& of, float2 v) { of.x += (v.x - mean.x) * (v.x - mean.x), of.y += (v.y - mean.y) * (v.y - mean.y); });
  if (warp > 0) return;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.y) * width + channel;
  *reinterpret_cast<float2*>(p.window_mean + at) = mean;
  *reinterpret_cast<float2*>(p.window_m2 + at) = square;
}

// Merges the windows in order, one thread per channel: centre and variance up to each window.
__global__ void __launch_bounds__(kThreads) merge_kernel(ProbeArgs p) {
  __shared__ double parts[kWarps];
  grid_dependency_wait();
  const int width = p.width, channel = blockIdx.x * kThreads + threadIdx.x;
  const bool has = channel < width;
  double mean = has ? p.mean[channel] : 0, m2 = has ? p.m2[channel] : 0;
  auto a = static_cast<double>(p.count);
  for (int i = 0; i < p.n_windows; ++i) {
    const SelectionWindow w = p.windows[i];
    const int fresh = w.row + w.n_rows - max(w.row, p.known);
    const std::int64_t at = static_cast<std::int64_t>(i) * width + channel;
    if (fresh > 0) {
      const auto b = static_cast<double>(fresh), both = a + b;
      if (has) {
        const double delta = static_cast<double>(p.window_mean[at]) - mean;
        mean += delta * (b / both);
        m2 += static_cast<double>(p.window_m2[at]) + delta * delta * (a * b / both);
      }
      a = both;
    }
    double variance = a < 2 ? 0 : m2 / (a - 1);
    if (has) p.window_mean[at] = static_cast<float>(mean), p.window_m2[at] = static_cast<float>(variance);
    const double sum = block_sum(variance, parts);
    if (threadIdx.x == 0) p.variances[static_cast<std::int64_t>(i) * gridDim.x + blockIdx.x] = sum;
  }
  if (has) p.mean[channel] = mean, p.m2[channel] = m2;
}

// bias[row]: a warp has kBiasRows rows of one window.
__global__ void __launch_bounds__(kThreads) bias_kernel(ProbeArgs p) {
  grid_dependency_wait();
  const int width = p.width, lane = threadIdx.x % kWarp, blocks = (width + kThreads - 1) / kThreads;
  const SelectionWindow w = p.windows[blockIdx.y];
  const int row = w.row + (blockIdx.x * kWarps + threadIdx.x / kWarp) * kBiasRows, end = w.row + w.n_rows;
  if (row >= end) return;
  double sum = 0;
  for (int i = 0; i < blocks; ++i) sum += p.variances[static_cast<std::int64_t>(blockIdx.y) * blocks + i];
  const auto floor = static_cast<float>(sum / width / 100);
  const float *centre = p.window_mean + static_cast<std::int64_t>(blockIdx.y) * width,
              *variance = p.window_m2 + static_cast<std::int64_t>(blockIdx.y) * width;
  float bias[kBiasRows] = {};
  for (int c = 2 * lane; c < width; c += kChannels) {
    const float2 z = *reinterpret_cast<const float2*>(centre + c), v = *reinterpret_cast<const float2*>(variance + c);
    const float2 weight = {floor > 0 ? __fdividef(1.0f, v.x + floor) : 0.0f,
                           floor > 0 ? __fdividef(1.0f, v.y + floor) : 0.0f};
#pragma unroll
    for (int i = 0; i < kBiasRows; ++i) {
      const float2 x = pair_at(p.x, min(row + i, end - 1), width, c);
      bias[i] += (x.x - z.x) * (x.x - z.x) * weight.x + (x.y - z.y) * (x.y - z.y) * weight.y;
    }
  }
#pragma unroll
  for (int i = 0; i < kBiasRows; ++i) {
    const float v = warp_sum(bias[i]);
    if (lane == 0 && row + i < end) p.bias[row + i] = v;
  }
}

// Weight before normalisation.   none: some row has bias 0 and outweighs all others
__device__ __forceinline__ double weight_of(ProbeWeights weights, float bias, bool none) {
  if (weights == ProbeWeights::kActivation) return static_cast<double>(bias);
  if (weights == ProbeWeights::kMean) return 1;
  return none ? (bias == 0 ? 1 : 0) : 1 / static_cast<double>(bias);
}

// Weighted sums: a thread block has kChannels channels of the KV heads, of one window.
__global__ void __launch_bounds__(kThreads) sum_kernel(ProbeArgs p) {
  __shared__ float2 parts[kWarps][kWarp];
  __shared__ double sums[kWarps];
  grid_dependency_wait();
  const int width = p.width, warp = threadIdx.x / kWarp;
  const SelectionWindow w = p.windows[blockIdx.y];
  const int end = w.row + w.n_rows, group = p.n_heads / p.n_kv_heads;
  bool zero = false;
  for (int i = w.row + static_cast<int>(threadIdx.x); i < end; i += kThreads) zero = zero || p.bias[i] == 0;
  const bool none = __syncthreads_or(zero) != 0;
  double all = 0;
  for (int i = w.row + static_cast<int>(threadIdx.x); i < end; i += kThreads)
    all += weight_of(p.weights, p.bias[i], none);
  all = block_sum(all, sums);
  const bool usable = all > 0 && isfinite(all);

  const int channel = lane_channel(p.n_kv_heads * p.head_dim), head = channel / p.head_dim, at = channel % p.head_dim;
  float2 sum = {0, 0};
#pragma unroll 4
  for (int i = w.row + warp; i < end; i += kWarps) {
    const float weight =
        usable ? static_cast<float>(weight_of(p.weights, p.bias[i], none) / all) : 1 / static_cast<float>(w.n_rows);
    float2 x = {0, 0};
    for (int g = 0; g < group; ++g) {
      const float2 v = pair_at(p.x, i, width, (head * group + g) * p.head_dim + at);
      x.x += v.x, x.y += v.y;
    }
    sum.x += weight * x.x, sum.y += weight * x.y;
  }
  sum = over_warps(sum, parts);
  if (warp == 0)
    *reinterpret_cast<float2*>(p.probes + static_cast<std::int64_t>(blockIdx.y) * p.n_kv_heads * p.head_dim + channel) =
        sum;
}

}  // namespace

std::size_t window_probe_scratch_bytes(std::int32_t n_windows, std::int32_t n_rows, std::int32_t width) {
  return ProbeArgs({.n_windows = n_windows, .n_rows = n_rows, .n_heads = 1, .head_dim = width}).arrays().total();
}

void window_probes_cuda(const WindowProbes& w, const CudaContext& context) {
  if (w.n_windows == 0) return;
  ProbeArgs p(w);
  p.arrays().assign(w.scratch);
  const int n = w.n_windows;
  launch(context, "window_moments", moments_kernel, grid_of(blocks_of(p.width, kChannels), n), kThreads, 0, p);
  launch(context, "window_moments", merge_kernel, grid_of(blocks_of(p.width, kThreads)), kThreads, 0, p);
  launch(context, "window_bias", bias_kernel, grid_of(blocks_of(w.n_rows, kWarps * kBiasRows), n), kThreads, 0, p);
  const auto sum = [&] {
    const int channels = p.n_kv_heads * p.head_dim;
    launch(context, "window_probes", sum_kernel, grid_of(blocks_of(channels, kChannels), n), kThreads, 0, p);
  };
  sum();
  if (w.whole == nullptr) return;
  p.n_kv_heads = w.n_heads, p.probes = w.whole;
  sum();
}

}  // namespace mneme
