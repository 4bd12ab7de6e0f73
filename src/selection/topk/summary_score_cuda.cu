// Scores of summarised units (selection/summary) for the unfused selection. Two launches:
//
//   terms   kTermParts thread blocks a KV head for its frame, as many for sinks and window: what its query heads add to
//           every unit (HeadTerms)
//   score   a warp takes one entry of a sketch or of moments; sets of centroids are centroid_score_cuda.cu's
#include "src/selection/topk/head_terms.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = kScoreThreads, kWarps = kScoreWarps;

// Thread blocks of a KV head whose terms are of its frame; those behind them take sinks and window.
__host__ __device__ int frame_blocks(const UnfusedArgs& p) {
  return p.s.index.entries.frame_floats > 0 ? kTermParts : 0;
}

// What a part reads is prefetched while the kernel before runs: the queries are the last thing that a step knows.
template <typename T>
__global__ void __launch_bounds__(kThreads) terms_kernel(UnfusedArgs p) {
  extern __shared__ __align__(16) float q[];
  launch_dependents();
  const int number = static_cast<int>(blockIdx.x), n_frame = frame_blocks(p);
  const bool fixed = static_cast<int>(blockIdx.y) >= n_frame;
  const int part = static_cast<int>(blockIdx.y) - (fixed ? n_frame : 0);
  const SlotRow row = row_of(p, number);
  prefetch_terms(p, row, number, fixed, part, part + 1);
  grid_dependency_wait();
  Item item;
  if (!item_at(p, row, number, false, item)) return;
  load_queries(p, item, q);
  if (!fixed) {
    frame_terms(p.s, item, q, part);
  } else if (item.plan.scores.domain == Domain::kAttention) {
    fixed_terms<T>(p, item, q, part);
  }
}

// ---- sketches and moments: a warp takes an entry

__device__ __forceinline__ float signed_at(const std::byte* bytes, int i) {
  return static_cast<float>(static_cast<std::int8_t>(bytes[i]));
}

// A warp's product of q with a row of signed bytes.
__device__ __forceinline__ float dot_bytes(const float* q, const std::byte* bytes, int d) {
  float sum = 0;
  for (int c = threadIdx.x % kWarp; c < d; c += kWarp) sum = fmaf(q[c], signed_at(bytes, c), sum);
  return warp_sum(sum);
}

__device__ __forceinline__ float half_at(const std::byte* at) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const std::uint16_t*>(at)));
}

// Entry `number`: a score for each of its tokens that are candidates, or one for the page.
__device__ void score_sketch(const UnfusedArgs& p, const Item& item, const float* q, const float* of_basis,
                             int number) {
  const UnitEntries& e = p.s.index.entries;
  const int d = p.s.head_dim, n = e.tokens, r = e.rank, lane = threadIdx.x % kWarp;
  const bool by_token = tokens_of_unit(item) == 1;
  const std::byte* entry = entries_of(p, item) + static_cast<std::int64_t>(number) * e.bytes;
  const std::byte *nibbles = entry + d, *scales = nibbles + r * n / 2;
  const float alpha = item.plan.scores.alpha, of_mean = half_at(scales), step = alpha * half_at(scales + 2),
              variance = variance_of(static_cast<int>(scales[4])), limit = spread_limit_of(static_cast<float>(n));
  for (int g = 0; g < item.n_scored; ++g) {
    const HeadTerms& terms = item.terms[g];
    const float all = alpha * fmaf(of_mean, dot_bytes(q + g * d, entry, d), terms.sum(terms.base)) +
                      gain_of(fmaxf(0.0f, alpha * alpha * terms.sum(terms.spread)) * variance, limit);
    float max = -INFINITY, sum = 0;
    for (int t = lane; t < n; t += kWarp) {
      float x = 0;
      for (int i = 0; i < r; ++i) {
        const int code = static_cast<int>(nibbles[(i * n + t) / 2]) >> (t % 2 * 4) & 15;
        x = fmaf(of_basis[g * kMaxSketchRank + i], static_cast<float>(code - 8), x);
      }
      x = fmaf(step, x, all);
      if (!by_token) {
        if (isnan(x)) sum = x, max = INFINITY;
        if (!isnan(sum)) add_sum(max, sum, x, 1.0f);
        continue;
      }
      const int u = number * n + t - item.first;
      if (u >= 0 && u < item.n) item.scores[g * p.width + u] = x / alpha;
    }
    if (by_token) continue;
#pragma unroll
    for (int i = 1; i < kWarp; i *= 2) add_sum(max, sum, __shfl_xor_sync(~0u, max, i), __shfl_xor_sync(~0u, sum, i));
    if (lane == 0) item.scores[g * p.width + number - item.first] = (max + logf(sum)) / alpha;
  }
}

__device__ void score_moments(const UnfusedArgs& p, const Item& item, const float* q, int number) {
  const UnitEntries& e = p.s.index.entries;
  const int d = p.s.head_dim, lane = threadIdx.x % kWarp;
  const std::byte* entry = entries_of(p, item) + static_cast<std::int64_t>(number) * e.bytes;
  const auto* scales = reinterpret_cast<const float*>(entry + 2 * d);
  const auto n = static_cast<float>(e.tokens);
  for (int g = 0; g < item.n_scored; ++g) {
    float m = 0, v = 0;
    for (int c = lane; c < d; c += kWarp) {
      const float x = q[g * d + c];
      m = fmaf(x, signed_at(entry, c), m);
      v = fmaf(x * x, static_cast<float>(static_cast<int>(entry[d + c])), v);
    }
    const float alpha = item.plan.scores.alpha, mean = alpha * scales[0] * warp_sum(m),
                variance = alpha * alpha * scales[1] * warp_sum(v);
    if (lane == 0)
      item.scores[g * p.width + number - item.first] = (mean + logf(n) + gain_of(variance, spread_limit_of(n))) / alpha;
  }
}

__global__ void __launch_bounds__(kThreads) entry_kernel(UnfusedArgs p) {
  extern __shared__ float q[];  // [n_scored][D], then [n_scored][kMaxSketchRank]
  launch_dependents();
  const SlotRow row = row_of(p, static_cast<int>(blockIdx.y));
  grid_dependency_wait();
  Item item;
  if (!item_at(p, row, static_cast<int>(blockIdx.y), false, item)) return;
  load_queries(p, item, q);
  const bool sketch = p.s.index.entries.kind == EntryKind::kSketch;
  float* of_basis = q + item.n_scored * p.s.head_dim;
  for (int i = threadIdx.x; sketch && i < item.n_scored * kMaxSketchRank; i += kThreads)
    of_basis[i] = item.terms[i / kMaxSketchRank].of_basis[i % kMaxSketchRank];
  __syncthreads();
  const int each = tokens_of_unit(item) == 1 ? p.s.index.entries.tokens : 1;  // units of an entry
  const int begin = item.first / each, stop = (item.first + item.n + each - 1) / each;
  for (int number = begin + static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
       number < stop; number += static_cast<int>(gridDim.x) * kWarps) {
    sketch ? score_sketch(p, item, q, of_basis, number) : score_moments(p, item, q, number);
  }
}

}  // namespace

void compute_head_terms_cuda(const UnfusedArgs& a, const CudaContext& context) {
  // Sets of centroids: the kernel that scores them takes sinks and window meanwhile.
  const bool fixed = a.s.selection.whole_attention && a.s.index.entries.kind != EntryKind::kCentroidSet;
  const int parts = frame_blocks(a) + (fixed ? kTermParts : 0);
  with_kv_type(a.s, [&]<typename T>(T) {
    launch(context, "head_terms", terms_kernel<T>,
           dim3(static_cast<unsigned>(a.rows.n * a.s.n_kv_heads), static_cast<unsigned>(parts)), dim3(kThreads),
           static_cast<std::size_t>(a.group * a.s.head_dim) * sizeof(float), a);
  });
}

void score_summaries_cuda(const UnfusedArgs& a, const CudaContext& context) {
  if (a.s.index.entries.kind == EntryKind::kCentroidSet) return score_centroids_cuda(a, context);
  launch(context, "score_summaries", entry_kernel,
         dim3(static_cast<unsigned>(summary_blocks(a, 1)), static_cast<unsigned>(a.rows.n * a.s.n_kv_heads)),
         dim3(kThreads), static_cast<std::size_t>(a.group * (a.s.head_dim + kMaxSketchRank)) * sizeof(float), a);
}

}  // namespace mneme
