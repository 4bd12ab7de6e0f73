// Frames of KV heads, in launches over a layer's heads:
//
//   spread      one thread block a fitted page: its mean, and its keys less their centroids (or their mean), to scratch
//   covariance  a thread block has kRows rows of a head's covariance and reads all of its keys
//   finish      one thread block a head: mean, deviations, trace; of a sketch also its basis
//
// A prompt of 128K tokens refits 12 times.
#include <algorithm>

#include "src/cuda/block_reduce.cuh"
#include "src/cuda/memory.h"
#include "src/selection/summary/page_summary.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kRows = 16, kTile = 32;  // covariance: rows of a thread block, keys in shared memory at a time
constexpr int kThreadsOfCovariance = 256;
constexpr int kWide = 512, kWideWarps = kWide / kWarp;
constexpr int kSubspaceRounds = 10;  // sketch.h

struct FitArgs {
  DeviceCache s;
  KvTables keys;
  FitFrames f;
  FittedPages pages;
  float* spread = nullptr;   // [KV heads][kMaxFittedPages][tokens][D]
  float* centres = nullptr;  // [KV heads][kMaxFittedPages][D]
  int* finite = nullptr;     // [KV heads][kMaxFittedPages]

  __device__ std::int64_t page_of(int kv_head, int i) const { return kv_head * kMaxFittedPages + i; }
  __device__ float* frame(int kv_head) const {
    return s.index.entries.frames +
           slot_index(s, f.of.slot_layer, f.of.seq_slot, kv_head) * s.index.entries.frame_floats;
  }
  // The covariance within a frame.
  __device__ float* covariance(int kv_head) const {
    const int before = s.index.entries.kind == EntryKind::kSketch ? 1 + s.index.entries.rank : 1;
    return frame(kv_head) + before * s.head_dim;
  }
  // Token t of the i-th fitted page.
  __device__ const std::byte* token(int kv_head, int i, int t) const {
    const int at = (pages.first + i * pages.step) * s.index.entries.tokens + t;
    return token_at(keys, f.of.key_layer, f.of.key_slot, kv_head, at);
  }
};

template <typename T>
__global__ void __launch_bounds__(kSummaryThreads) spread_kernel(FitArgs p) {
  extern __shared__ float page_floats[];
  __shared__ Clusters clusters;
  grid_dependency_wait();
  const int i = blockIdx.x, kv_head = blockIdx.y, d = p.s.head_dim, n = p.s.index.entries.tokens;
  const bool centroids = p.s.index.entries.kind == EntryKind::kCentroidSet;
  const PageShared page(page_floats, n, d, centroids ? p.s.index.entries.rank : 0);
  load_page<T>(page, p.s.codes, [&](int t) { return p.token(kv_head, i, t); });
  const bool finite = centroids ? cluster_page(page, clusters) : page_is_finite(page);
  const std::int64_t to = p.page_of(kv_head, i);
  if (threadIdx.x == 0) p.finite[to] = finite ? 1 : 0;
  for (int c = threadIdx.x; c < d; c += kSummaryThreads) p.centres[to * d + c] = page.centre[c];
  for (int at = threadIdx.x; at < n * d; at += kSummaryThreads) p.spread[to * n * d + at] = page.key(at / d)[at % d];
}

// Sums of products over the finite pages' keys, not yet divided by their trace.
__global__ void __launch_bounds__(kThreadsOfCovariance) covariance_kernel(FitArgs p) {
  extern __shared__ float tile[];  // [kTile][D]
  grid_dependency_wait();
  const int kv_head = blockIdx.y, first = blockIdx.x * kRows, d = p.s.head_dim, n = p.s.index.entries.tokens;
  constexpr int kMost = kRows * 256 / kThreadsOfCovariance;
  float sum[kMost] = {};
  for (int i = 0; i < p.pages.n; ++i) {
    const std::int64_t page = p.page_of(kv_head, i);
    if (p.finite[page] == 0) continue;
    for (int from = 0; from < n; from += kTile) {
      const int rows = min(kTile, n - from);
      __syncthreads();
      for (int at = threadIdx.x; at < rows * d; at += kThreadsOfCovariance)
        tile[at] = p.spread[(page * n + from) * d + at];
      __syncthreads();
#pragma unroll
      for (int o = 0; o < kMost; ++o) {
        const int at = o * kThreadsOfCovariance + threadIdx.x, row = first + at / d, column = at % d;
        if (at >= kRows * d || row >= d) continue;
        for (int t = 0; t < rows; ++t) sum[o] = fmaf(tile[t * d + row], tile[t * d + column], sum[o]);
      }
    }
  }
  float* out = p.covariance(kv_head);
#pragma unroll
  for (int o = 0; o < kMost; ++o) {
    const int at = o * kThreadsOfCovariance + threadIdx.x, row = first + at / d;
    if (at < kRows * d && row < d) out[row * d + at % d] = sum[o];
  }
}

// Over a thread block of kWide threads.
__device__ float wide_sum(float v) {
  __shared__ float parts[kWideWarps];
  return block_sum(v, parts);
}

// Mean key of the finite pages. Returns their number.
__device__ int mean_key(const FitArgs& p, int kv_head, float* mean) {
  const int d = p.s.head_dim;
  int used = 0;
  for (int i = 0; i < p.pages.n; ++i) used += p.finite[p.page_of(kv_head, i)];
  for (int c = threadIdx.x; c < d; c += kWide) {
    float sum = 0;
    for (int i = 0; i < p.pages.n; ++i)
      if (p.finite[p.page_of(kv_head, i)] != 0) sum += p.centres[p.page_of(kv_head, i) * d + c];
    mean[c] = used == 0 ? 0.0f : sum / static_cast<float>(used);
  }
  __syncthreads();
  return used;
}

// Deviation of every channel of all keys; 1 where there is none.
template <typename T>
__device__ void channel_deviations(const FitArgs& p, int kv_head, const float* mean, float* deviation) {
  __shared__ float sums[256];
  const int d = p.s.head_dim, n = p.pages.n * p.s.index.entries.tokens, groups = max(1, kWide / d);
  for (int c = threadIdx.x; c < d; c += kWide) sums[c] = 0;
  __syncthreads();
  for (int at = threadIdx.x; at < groups * d; at += kWide) {
    const int c = at % d;
    float sum = 0;
    for (int t = at / d; t < n; t += groups) {
      const std::byte* key = p.token(kv_head, t / p.s.index.entries.tokens, t % p.s.index.entries.tokens);
      const float x = widen(KvRow<T>(key, d, p.s.codes)[c]) - mean[c];
      sum += isfinite(x) ? x * x : 0.0f;
    }
    atomicAdd(&sums[c], sum);
  }
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += kWide)
    deviation[c] = sums[c] > 0.0f ? sqrtf(sums[c] / static_cast<float>(n)) : 1.0f;
}

// out [r][D] = u [r][D] times the covariance.
__device__ void times_covariance(const float* u, int r, const float* cov, int d, float* out) {
  __syncthreads();
  for (int at = threadIdx.x; at < r * d; at += kWide) {
    const int i = at / d, c = at % d;
    float sum = 0;
    for (int j = 0; j < d; ++j) sum = fmaf(u[i * d + j], cov[j * d + c], sum);
    out[at] = sum;
  }
  __syncthreads();
}

// The channels of the largest variance, one a row; of equals the first.
__device__ void largest_channels(const float* cov, int r, int d, float* u) {
  for (int at = threadIdx.x; at < r * d; at += kWide) u[at] = 0;
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += kWide) {
    const float own = cov[c * (d + 1)];
    int before = 0;
    for (int j = 0; j < d; ++j) {
      const float other = cov[j * (d + 1)];
      before += other > own || (other == own && j < c);
    }
    if (before < r) u[before * d + c] = 1.0f;
  }
  __syncthreads();
}

// Projects `row` out of the i rows before it, twice. Returns its square.
__device__ float project(float* row, const float* u, int i, int d, float* dots) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int twice = 0; twice < 2; ++twice) {
    for (int j = warp; j < i; j += kWideWarps) {
      float sum = 0;
      for (int c = lane; c < d; c += kWarp) sum = fmaf(row[c], u[j * d + c], sum);
      sum = warp_sum(sum);
      if (lane == 0) dots[j] = sum;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < d; c += kWide) {
      float x = row[c];
      for (int j = 0; j < i; ++j) x -= dots[j] * u[j * d + c];
      row[c] = x;
    }
    __syncthreads();
  }
  float square = 0;
  for (int c = threadIdx.x; c < d; c += kWide) square = fmaf(row[c], row[c], square);
  return wide_sum(square);
}

// Gram-Schmidt, row after row. A row that the others span is replaced by the first channel that they do not.
__device__ void orthonormalise(float* u, int r, int d, float* dots) {
  for (int i = 0; i < r; ++i) {
    float* row = u + i * d;
    float before = 0;
    for (int c = threadIdx.x; c < d; c += kWide) before = fmaf(row[c], row[c], before);
    before = wide_sum(before);
    float norm = project(row, u, i, d, dots);
    for (int c = 0; c < d && !(norm > 1e-10f * before && norm > 1e-30f); ++c) {
      for (int at = threadIdx.x; at < d; at += kWide) row[at] = at == c ? 1.0f : 0.0f;
      __syncthreads();
      norm = project(row, u, i, d, dots);
      if (norm > 1e-3f) break;
    }
    const float scale = sqrtf(norm);
    for (int c = threadIdx.x; c < d; c += kWide) row[c] /= scale;
    __syncthreads();
  }
}

// Basis and deviations of a sketch; the covariance becomes that of what the basis leaves.   next [r][D] shared
__device__ void fit_sketch(float* u, int r, float* cov, int d, int n_keys, float* next) {
  __shared__ float dots[kMaxSketchRank];
  float* deviation = cov + d * d;
  largest_channels(cov, r, d, u);
  for (int round = 0; round < kSubspaceRounds; ++round) {
    times_covariance(u, r, cov, d, next);
    orthonormalise(next, r, d, dots);
    for (int at = threadIdx.x; at < r * d; at += kWide) u[at] = next[at];
    __syncthreads();
  }
  times_covariance(u, r, cov, d, next);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int i = warp; i < r; i += kWideWarps) {
    float square = 0;
    for (int c = lane; c < d; c += kWarp) square = fmaf(u[i * d + c], next[i * d + c], square);
    square = warp_sum(square);
    if (lane == 0) deviation[i] = square > 0.0f ? sqrtf(square / static_cast<float>(n_keys)) : 1.0f;
  }
  // (1 - U^T U) cov (1 - U^T U): first from the left, then from the right.
  for (const bool left : {true, false}) {
    if (!left) times_covariance(u, r, cov, d, next);
    __syncthreads();
    for (int at = threadIdx.x; at < d * d; at += kWide) {
      const int i = at / d, j = at % d;
      float x = cov[at];
      for (int k = 0; k < r; ++k) x -= left ? u[k * d + i] * next[k * d + j] : next[k * d + i] * u[k * d + j];
      cov[at] = x;
    }
    __syncthreads();
  }
}

template <typename T>
__global__ void __launch_bounds__(kWide) finish_kernel(FitArgs p) {
  extern __shared__ float next[];
  grid_dependency_wait();
  const int kv_head = blockIdx.x, d = p.s.head_dim;
  float* frame = p.frame(kv_head);
  float* cov = p.covariance(kv_head);
  const int used = mean_key(p, kv_head, frame);
  const bool sketch = p.s.index.entries.kind == EntryKind::kSketch;
  if (sketch) {
    fit_sketch(frame + d, p.s.index.entries.rank, cov, d, max(used, 1) * p.s.index.entries.tokens, next);
  } else {
    channel_deviations<T>(p, kv_head, frame, cov + d * d);
  }
  float trace = 0;
  for (int c = threadIdx.x; c < d; c += kWide) trace += cov[c * (d + 1)];
  trace = wide_sum(trace);
  const bool some = sketch ? trace > 1e-30f : trace > 0.0f;
  __syncthreads();
  for (int at = threadIdx.x; at < d * d; at += kWide) cov[at] = some ? cov[at] / trace : sketch ? 0.0f : cov[at];
}

ArenaLayout arrays_of(FitArgs& a) {
  const auto pages = static_cast<std::size_t>(a.s.n_kv_heads * kMaxFittedPages),
             floats = pages * static_cast<std::size_t>(a.s.head_dim);
  ArenaLayout arrays;
  arrays.add(a.spread, floats * static_cast<std::size_t>(a.s.index.entries.tokens) * sizeof(float));
  arrays.add(a.centres, floats * sizeof(float));
  arrays.add(a.finite, pages * sizeof(int));
  return arrays;
}

}  // namespace

std::size_t fit_frames_scratch_bytes(const DeviceCache& s) {
  if (s.index.entries.frame_floats == 0) return 0;
  FitArgs args{.s = s};
  return arrays_of(args).total();
}

void fit_frames_cuda(const FitFrames& f, const DeviceCache& s, const KvTables& keys, const CudaContext& context) {
  if (f.pages < 1) return;
  FitArgs args{.s = s, .keys = keys, .f = f, .pages = fitted_pages(f.pages)};
  arrays_of(args).assign(f.scratch);
  const int heads = s.n_kv_heads, d = s.head_dim;
  const UnitEntries& e = s.index.entries;
  const auto floats_of_rows = [&](int rows) { return static_cast<std::size_t>(rows * d) * sizeof(float); };
  with_kv_type(s, [&]<typename T>(T) {
    launch_shared<spread_kernel<T>>(context, "spread_of_pages", grid_of(args.pages.n, heads), dim3(kSummaryThreads),
                                    page_shared_bytes(e, d), args);
    launch(context, "covariance_of_keys", covariance_kernel, grid_of((d + kRows - 1) / kRows, heads),
           dim3(kThreadsOfCovariance), floats_of_rows(kTile), args);
    launch(context, "finish_frames", finish_kernel<T>, grid_of(heads), dim3(kWide),
           floats_of_rows(e.kind == EntryKind::kSketch ? e.rank : 0), args);
  });
}

}  // namespace mneme
