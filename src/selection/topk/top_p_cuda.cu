#include "src/selection/topk/top_p_cuda.h"

#include <algorithm>

#include "src/kv/kv_codes.cuh"
#include "src/offload/device_cache_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMaxChannels = kMaxSlotHeadDim / kWarp;  // of a lane

struct TopPArgs {
  KeepTopP k;
  DeviceCache s;  // of_layer()
  int slot_layer, group;
  float* scores;  // [rows][heads][stride]
};

// One (row, KV head).
struct PrunedHead {
  int row, kv_head, seq_slot, n;
  bool keeps_all;
};
__device__ __forceinline__ bool item_at(const TopPArgs& p, int number, PrunedHead& item) {
  item.row = number / p.s.n_kv_heads, item.kv_head = number % p.s.n_kv_heads;
  const SlotRow r = row_at(p.s, p.k.rows, item.row);
  item.seq_slot = r.seq_slot;
  item.n = r.seq_slot < 0 ? 0 : p.k.lengths[item.row];
  item.keeps_all = !r.sparse || r.plan.top_p >= 1;
  return item.n > 0;
}

// Key of a listed token.
__device__ __forceinline__ const std::byte* listed_key(const TopPArgs& p, const PrunedHead& item, int at) {
  const KvTables& t = p.k.tables;
  const std::int32_t* table = t.blocks + table_at(t, p.k.tables_layer, item.seq_slot, item.kv_head);
  const std::int64_t token =
      t.of_tokens ? table[at] : std::int64_t{table[at / kKvPageTokens]} * kKvPageTokens + at % kKvPageTokens;
  return t.base + token * token_bytes(t);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) score_kernel(TopPArgs p) {
  launch_dependents();
  grid_dependency_wait();
  PrunedHead item;
  if (!item_at(p, static_cast<int>(blockIdx.y), item) || item.keeps_all) return;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, d = p.s.head_dim;
  const std::int64_t head = std::int64_t{item.row} * p.s.n_heads + item.kv_head * p.group;
  const auto* q = static_cast<const __nv_bfloat16*>(p.k.q) + head * d;
  float* scores = p.scores + head * p.k.stride;
  for (int at = static_cast<int>(blockIdx.x) * kWarps + warp; at < item.n; at += static_cast<int>(gridDim.x) * kWarps) {
    const KvRow<T> key(listed_key(p, item, at), d, p.s.codes);
    float k[kMaxChannels] = {};
#pragma unroll
    for (int i = 0; i < kMaxChannels; ++i)
      if (i * kWarp + lane < d) k[i] = widen(key[i * kWarp + lane]);
    for (int g = 0; g < p.group; ++g) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kMaxChannels; ++i)
        if (i * kWarp + lane < d) sum = fmaf(widen(q[g * d + i * kWarp + lane]), k[i], sum);
      sum = warp_sum(sum);
      if (lane == 0) scores[g * p.k.stride + at] = sum;
    }
  }
}

// Reduces over the thread block; every thread gets the result.
template <typename V, typename F>
__device__ V over_block(V own, F&& merge) {
  __shared__ V parts[kWarps];
#pragma unroll
  for (int k = kWarp / 2; k > 0; k /= 2) own = merge(own, __shfl_xor_sync(~0u, own, k));
  __syncthreads();
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = own;
  __syncthreads();
  V all = parts[0];
  for (int w = 1; w < kWarps; ++w) all = merge(all, parts[w]);
  return all;
}

// Converts a head's scores to softmax weights, the largest 1, and returns the least weight that is kept: the tokens at
// or above it hold the share.
__device__ float least_kept(const TopPArgs& p, const PrunedHead& item, float share, float* scores) {
  float most = -INFINITY;
  for (int i = threadIdx.x; i < item.n; i += kThreads) most = fmaxf(most, scores[i]);
  most = over_block(most, [](float a, float b) { return fmaxf(a, b); });
  const auto add = [](double a, double b) { return a + b; };
  double sum = 0;
  for (int i = threadIdx.x; i < item.n; i += kThreads)
    sum += static_cast<double>(scores[i] = expf(p.k.scale * (scores[i] - most)));
  const double wanted = static_cast<double>(share) * over_block(sum, add);
  // The largest threshold, among all floats from 0 to 1, at which enough is kept; as bits, weights have the same order.
  std::uint32_t low = 0, high = __float_as_uint(1.0f);
  while (low < high) {
    const std::uint32_t middle = low + (high - low + 1) / 2;
    const float least = __uint_as_float(middle);
    sum = 0;
    for (int i = threadIdx.x; i < item.n; i += kThreads) sum += scores[i] >= least ? static_cast<double>(scores[i]) : 0;
    if (over_block(sum, add) >= wanted) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return __uint_as_float(low);
}

__global__ void __launch_bounds__(kThreads) keep_kernel(TopPArgs p) {
  launch_dependents();
  grid_dependency_wait();
  PrunedHead item;
  if (!item_at(p, static_cast<int>(blockIdx.x), item)) return;
  float* weights = p.k.log_weights + static_cast<std::int64_t>(blockIdx.x) * p.k.stride;
  const float share = item.keeps_all ? 1.0f : p.s.plans[item.seq_slot].top_p;
  float* scores = p.scores + (std::int64_t{item.row} * p.s.n_heads + item.kv_head * p.group) * p.k.stride;
  bool all = item.keeps_all;
  for (int i = threadIdx.x; !item.keeps_all && i < item.n; i += kThreads)
    for (int g = 0; g < p.group; ++g) all = all || !isfinite(scores[g * p.k.stride + i]);
  all = __syncthreads_or(all ? 1 : 0) != 0;
  for (int i = threadIdx.x; i < item.n; i += kThreads) weights[i] = all || i == item.n - 1 ? 0.0f : -INFINITY;
  if (all) return;
  for (int g = 0; g < p.group; ++g) {
    float* of_head = scores + g * p.k.stride;
    const float least = least_kept(p, item, share, of_head);
    for (int i = threadIdx.x; i < item.n; i += kThreads)
      if (of_head[i] >= least) weights[i] = 0;
  }
  int dropped = 0;  // each thread has written the weights that it reads
  for (int i = threadIdx.x; i < item.n; i += kThreads) dropped += weights[i] == 0 ? 0 : 1;
  dropped = over_block(dropped, [](int a, int b) { return a + b; });
  if (threadIdx.x == 0) add_count(p.s.counts[kept_index(p.s, p.slot_layer, item.seq_slot)].pruned, dropped);
}

}  // namespace

std::size_t top_p_scratch_bytes(const DeviceCache& s, std::int32_t n_rows, std::int64_t stride) {
  return static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(s.n_heads) * static_cast<std::size_t>(stride) *
         sizeof(float);
}

void keep_top_p_cuda(const KeepTopP& k, const DeviceCache& s, std::int32_t slot_layer, const CudaContext& context) {
  if (k.rows.n == 0) return;
  const TopPArgs args{k, of_layer(s, slot_layer), slot_layer, s.n_heads / s.n_kv_heads,
                      reinterpret_cast<float*>(k.scratch)};
  const int items = k.rows.n * s.n_kv_heads;
  const int blocks = std::clamp(8 * sm_count() / items, 1, static_cast<int>(k.stride) / kWarps + 1);
  with_kv_type(s, [&]<typename T>(T) {
    launch(context, "top_p_scores", score_kernel<T>, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(items)),
           dim3(kThreads), 0, args);
  });
  launch(context, "keep_top_p", keep_kernel, dim3(static_cast<unsigned>(items)), dim3(kThreads), 0, args);
}

}  // namespace mneme
