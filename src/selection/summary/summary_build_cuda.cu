// One thread block builds one entry of one KV head. k-means runs on the page's Gram matrix: after the products of its keys
// a round is additions.
#include "src/cuda/block_reduce.cuh"
#include "src/selection/index/entry_build.cuh"
#include "src/selection/summary/page_summary.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr float kNan = __builtin_nanf("");

struct Entry {
  std::byte* at;
  const float* frame;
};

// Packs the clusters of a page; of a page that is not finite, scales that are not.
__device__ void pack_centroids(const PageShared& s, const Clusters& c, bool finite, const Entry& e) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, d = s.d, k = s.k;
  const float* deviation = e.frame + d * (d + 1);
  std::byte* scales = e.at + k * (d / 2);
  std::byte* counts = scales + 2 * k;
  for (int j = warp; j < k; j += kSummaryWarps) {
    float largest = 0;
    for (int ch = lane; ch < d && finite; ch += kWarp) {
      const float x = (s.means[j * d + ch] + s.centre[ch] - e.frame[ch]) / deviation[ch];
      s.means[j * d + ch] = x;
      largest = fmaxf(largest, fabsf(x));
    }
    largest = !finite ? kNan : c.sizes[j] == 0 ? 0.0f : warp_max(largest) / 7.0f;
    float scale = 0;
    if (lane == 0) {
      scale = put_half(largest, scales + 2 * j);
      counts[j] = static_cast<std::byte>(finite ? c.sizes[j] : 1);
      counts[k + j] = static_cast<std::byte>(finite ? variance_code_of(c.variance[j]) : 0);
    }
    const float inverse = inverse_of(__shfl_sync(~0u, scale, 0));
    __syncwarp();
    for (int b = lane; b < d / 2; b += kWarp) {
      const float* x = s.means + j * d + 2 * b;
      const unsigned low = finite ? nibble_of(x[0], inverse) : 0, high = finite ? nibble_of(x[1], inverse) : 0;
      e.at[j * (d / 2) + b] = static_cast<std::byte>(low | high << 4);
    }
  }
}

// z [n][r]: coefficients of the page's keys, in shared memory behind its mean.
__device__ void pack_sketch(const PageShared& s, int r, const Entry& e) {
  const int tid = threadIdx.x, d = s.d, n = s.n;
  std::byte* nibbles = e.at + d;
  std::byte* scales = nibbles + r * n / 2;
  for (int i = tid; i < d + r * n / 2; i += kSummaryThreads) e.at[i] = std::byte{0};
  if (tid < 6) scales[tid] = std::byte{0};
  __syncthreads();
  if (!page_is_finite(s)) {
    if (tid == 0) put_half(kNan, scales);
    return;
  }
  __shared__ float parts[kSummaryWarps];
  float largest = 0, within = 0, captured = 0;
  for (int c = tid; c < d; c += kSummaryThreads) largest = fmaxf(largest, fabsf(s.centre[c] -= e.frame[c]));
  for (int i = tid; i < n * d; i += kSummaryThreads) within = fmaf(s.key(i / d)[i % d], s.key(i / d)[i % d], within);
  const float largest_mean = block_max(largest, parts);
  within = block_sum(within, parts);
  float* z = s.gram;
  const float *u = e.frame + d, *deviation = e.frame + d * (1 + r + d);
  largest = 0;
  for (int at = tid; at < n * r; at += kSummaryThreads) {
    const int t = at / r, i = at % r;
    float sum = 0;
    for (int c = 0; c < d; ++c) sum = fmaf(s.key(t)[c], u[i * d + c], sum);
    captured = fmaf(sum, sum, captured);
    z[at] = sum / deviation[i];
    largest = fmaxf(largest, fabsf(z[at]));
  }
  largest = block_max(largest, parts), captured = block_sum(captured, parts);
  __shared__ float stored[2];
  if (tid == 0) {
    stored[0] = put_half(largest_mean / 127.0f, scales), stored[1] = put_half(largest / 7.0f, scales + 2);
    const float left = fmaxf(0.0f, within - captured) / static_cast<float>(n);
    scales[4] = static_cast<std::byte>(variance_code_of(left));
  }
  __syncthreads();
  const float of_channel = inverse_of(stored[0]), of_coefficient = inverse_of(stored[1]);
  for (int c = tid; c < d; c += kSummaryThreads)
    e.at[c] = static_cast<std::byte>(
        static_cast<std::int8_t>(fminf(fmaxf(rintf(s.centre[c] * of_channel), -127.0f), 127.0f)));
  for (int at = tid; at < r * n / 2; at += kSummaryThreads) {
    const int i = at / (n / 2), t = at % (n / 2) * 2;
    nibbles[at] = static_cast<std::byte>(nibble_of(z[t * r + i], of_coefficient) |
                                         nibble_of(z[(t + 1) * r + i], of_coefficient) << 4);
  }
}

__device__ void pack_moments(const PageShared& s, const Entry& e) {
  __shared__ float parts[kSummaryWarps];
  const int tid = threadIdx.x, d = s.d;
  float largest = 0, widest = 0;
  bool finite = true;
  for (int c = tid; c < d; c += kSummaryThreads) {
    float variance = 0;
    for (int t = 0; t < s.n; ++t) variance = fmaf(s.key(t)[c], s.key(t)[c], variance);
    variance /= static_cast<float>(s.n);
    s.x[c] = variance;  // key 0: this thread was the last to read the channel
    finite = finite && isfinite(s.centre[c]);
    largest = fmaxf(largest, fabsf(s.centre[c])), widest = fmaxf(widest, variance);
  }
  finite = __syncthreads_and(finite ? 1 : 0) != 0;
  largest = block_max(largest, parts), widest = block_max(widest, parts);
  const float scale = finite ? largest / 127.0f : kNan, spread = widest / 255.0f;
  for (int c = tid; c < d; c += kSummaryThreads) {
    const float m = finite && scale > 0.0f ? rintf(s.centre[c] / scale) : 0.0f,
                v = finite && spread > 0.0f ? rintf(s.x[c] / spread) : 0.0f;
    e.at[c] = static_cast<std::byte>(static_cast<std::int8_t>(fminf(fmaxf(m, -127.0f), 127.0f)));
    e.at[d + c] = static_cast<std::byte>(static_cast<std::uint8_t>(fminf(fmaxf(v, 0.0f), 255.0f)));
  }
  if (tid == 0) {
    reinterpret_cast<float*>(e.at + 2 * d)[0] = scale;
    reinterpret_cast<float*>(e.at + 2 * d)[1] = spread;
  }
}

template <typename T>
struct BuildSummary {
  static constexpr int kThreads = kSummaryThreads;
  template <typename F>
  static __device__ void build(const DeviceCache& s, std::int64_t index, int number, int n, F&& token) {
    extern __shared__ float page_floats[];
    __shared__ Clusters clusters;
    const UnitEntries& e = s.index.entries;
    const PageShared page(page_floats, n, s.head_dim, e.kind == EntryKind::kCentroidSet ? e.rank : 0);
    const Entry entry{e.data + (index * e.most + number) * static_cast<std::int64_t>(e.bytes),
                      e.frames + index * e.frame_floats};
    load_page<T>(page, s.codes, token);
    if (e.kind == EntryKind::kCentroidSet) {
      const bool finite = cluster_page(page, clusters);
      pack_centroids(page, clusters, finite, entry);
    } else if (e.kind == EntryKind::kSketch) {
      pack_sketch(page, e.rank, entry);
    } else {
      pack_moments(page, entry);
    }
  }
};

}  // namespace

void build_summaries_cuda(const BuildEntries& b, const DeviceCache& s, const KvTables& keys,
                          const CudaContext& context) {
  build_entries<BuildSummary>("build_summaries", {s, keys, b}, kSummaryThreads,
                              page_shared_bytes(s.index.entries, s.head_dim), context);
}

void close_summaries_cuda(const CloseEntries& c, const DeviceCache& s, const KvTables& pages,
                          const CudaContext& context) {
  close_entries<BuildSummary>("close_summaries", {s, pages, c}, kSummaryThreads,
                              page_shared_bytes(s.index.entries, s.head_dim), context);
}

}  // namespace mneme
