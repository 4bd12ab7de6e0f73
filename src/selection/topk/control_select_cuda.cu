// Two simple kernels: the first writes a score for every (query head, unit), over the whole device; in the second one
// thread block takes a KV head, pools and ranks.
#include <algorithm>
#include <type_traits>

#include "src/selection/topk/block_topk.cuh"
#include "src/selection/topk/control_select_cuda.h"
#include "src/selection/topk/select_common.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
static_assert(kThreads == kRankThreads);
constexpr int kMaxGroup = kMaxSlotGroup, kMaxRows = 64;
constexpr std::size_t kScratchBytes = std::size_t{64} << 20;  // more rows than fit take several launches
constexpr int kTiles = kKvPageTokens / 8;                     // mma tiles of a page's tokens

struct Args {
  KvSlots s;
  SlotRows rows;
  KvTables pages;
  int layer, slot_layer, group;
  std::int64_t width;  // of a row of scores
  float* scores;       // [rows * KV heads][group][width]
};

// Candidates of a (row, KV head).
struct Item {
  SlotRules rules;
  PageRegion region;
  int seq_slot, kv_head, length;
  float* scores;
};
__device__ __forceinline__ bool item_at(const Args& p, int number, Item& item) {
  const RowOfSlots r = row_at(p.s, p.rows, number / p.s.n_kv_heads);
  if (!r.sparse || r.rules.score == SlotScore::kIndex) return false;
  item.rules = r.rules, item.seq_slot = r.seq_slot, item.length = r.length;
  item.kv_head = number % p.s.n_kv_heads;
  item.region = page_region(r.rules, r.length);
  item.scores = p.scores + static_cast<std::int64_t>(number) * p.group * p.width;
  return item.region.n_select > 0;
}

// ---- random scores: src/base/rng.h

__device__ __forceinline__ std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
// Draw number `counter` of a seed.
__device__ __forceinline__ std::uint64_t random_u64(std::uint64_t seed, std::uint64_t counter) {
  constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ull;
  return mix(mix(seed + kStep) + kStep * (counter + 1));
}

__device__ __forceinline__ void write_random_scores(const Args& p, const Item& item) {
  const std::uint64_t where = (static_cast<std::uint64_t>(item.length) << 24) ^
                              (static_cast<std::uint64_t>(p.layer) << 12) ^ static_cast<std::uint64_t>(item.kv_head);
  const std::uint64_t key = random_u64(item.rules.seed ^ (where * 0x9e3779b97f4a7c15ull), 0);
  const int n = item.region.last - item.region.first, step = static_cast<int>(gridDim.x) * kThreads;
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < n; i += step) {
    const std::uint64_t bits = random_u64(key, static_cast<std::uint64_t>(item.region.first + i));
    const auto x = static_cast<float>(static_cast<double>(bits >> 11) * 0x1p-53);
    for (int g = 0; g < p.group; ++g) item.scores[g * p.width + i] = x;
  }
}

// ---- scores by keys

// A warp's queries as operand A: lane (g, t) has channels 8 t .. 8 t + 7 of every 32, of heads g and g + 8. Which 16
// channels an mma takes is free as long as keys are read in the same order.
template <typename T, int kDim>
struct HeadQueries {
  static constexpr int kChunks = kDim / 32;
  std::uint32_t q[kChunks][2][4];

  static __device__ __forceinline__ std::uint32_t convert(std::uint32_t v) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) return v;
    const float2 f = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
    return pack<T>(f.x, f.y);
  }
  __device__ __forceinline__ void load(const __nv_bfloat16* first_head, int group) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        uint4 v{0, 0, 0, 0};
        const int head = g + 8 * r;
        if (head < group) v = __ldcg(reinterpret_cast<const uint4*>(first_head + head * kDim + c * 32 + t * 8));
        q[c][r][0] = convert(v.x), q[c][r][1] = convert(v.y), q[c][r][2] = convert(v.z), q[c][r][3] = convert(v.w);
      }
  }
  // s[j][i]: dot products with tokens 8 j + 2 t + i % 2 of the page, of heads g (i < 2) and g + 8.
  __device__ __forceinline__ void score(float (&s)[kTiles][4], const std::byte* block) const {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    uint4 k[kTiles][kChunks];
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        k[j][c] = __ldcg(reinterpret_cast<const uint4*>(block + (j * 8 + g) * 4 * kDim + c * 64 + t * 16));
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        mma<T>(s[j], q[c][0][0], q[c][1][0], q[c][0][1], q[c][1][1], k[j][c].x, k[j][c].y);
        mma<T>(s[j], q[c][0][2], q[c][1][2], q[c][0][3], q[c][1][3], k[j][c].z, k[j][c].w);
      }
    }
  }
};

// log(sum exp(alpha s)) / alpha over a page's tokens, of head g (kHalf 0) or g + 8.
template <int kHalf>
__device__ __forceinline__ float page_score(const float (&s)[kTiles][4], float alpha) {
  float largest = -INFINITY, sum = 0;
#pragma unroll
  for (const auto& tile : s) largest = fmaxf(largest, fmaxf(tile[2 * kHalf], tile[2 * kHalf + 1]));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
#pragma unroll
  for (const auto& tile : s)
    sum += expf(alpha * (tile[2 * kHalf] - largest)) + expf(alpha * (tile[2 * kHalf + 1] - largest));
  return largest + logf(warp_sum<4>(sum)) / alpha;
}

// One warp per page.
template <typename T, int kDim>
__device__ __forceinline__ void score_keys(const Args& p, const Item& item) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, warp = threadIdx.x / kWarp;
  const bool tokens = item.rules.unit_tokens == 1;
  const int first = item.region.first, last = item.region.last;
  const int begin = tokens ? first / kKvPageTokens : first,
            end = tokens ? (last + kKvPageTokens - 1) / kKvPageTokens : last;
  HeadQueries<T, kDim> queries;
  queries.load(static_cast<const __nv_bfloat16*>(p.s.last_q) +
                   slot_index(p.s, p.slot_layer, item.seq_slot, item.kv_head) * p.group * kDim,
               p.group);
  for (int page = begin + static_cast<int>(blockIdx.x) * kWarps + warp; page < end;
       page += static_cast<int>(gridDim.x) * kWarps) {
    float s[kTiles][4];
    queries.score(s, block_at(p.pages, p.layer, item.seq_slot, item.kv_head, page));
    if (!tokens) {
      const float low = page_score<0>(s, item.rules.alpha), high = page_score<1>(s, item.rules.alpha);
      if (t == 0 && g < p.group) item.scores[g * p.width + page - first] = low;
      if (t == 0 && g + 8 < p.group) item.scores[(g + 8) * p.width + page - first] = high;
      continue;
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = page * kKvPageTokens + j * 8 + 2 * t + i % 2, head = g + i / 2 * 8;
        if (head < p.group && token >= first && token < last) item.scores[head * p.width + token - first] = s[j][i];
      }
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) score_kernel(Args p) {
  launch_dependents();
  grid_dependency_wait();
  Item item;
  if (!item_at(p, static_cast<int>(blockIdx.y), item)) return;
  item.rules.score == SlotScore::kRandom ? write_random_scores(p, item) : score_keys<T, kDim>(p, item);
}

// A head's log-sum-exp over its n scores. Called by a whole warp.
__device__ __forceinline__ float head_lse(const float* scores, int n, float alpha) {
  float max = -INFINITY, sum = 0;
  for (int i = threadIdx.x % kWarp; i < n; i += kWarp) {
    const float v = scores[i];
    if (isnan(v)) continue;
    add_sum(max, sum, fminf(alpha * v, 3.4028235e38f), 1.0f);
  }
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) add_sum(max, sum, __shfl_xor_sync(~0u, max, d), __shfl_xor_sync(~0u, sum, d));
  return max == -INFINITY ? -INFINITY : max + logf(sum);
}

__global__ void __launch_bounds__(kThreads) rank_kernel(Args p) {
  __shared__ Ranker ranker;
  __shared__ float lse[kMaxGroup];
  launch_dependents();
  grid_dependency_wait();
  const int tid = threadIdx.x, warp = tid / kWarp;
  Item item;
  if (!item_at(p, static_cast<int>(blockIdx.x), item)) return;
  const int n = item.region.last - item.region.first;
  const bool logs = pools_logs(item.rules.pool);
  for (int g = warp; logs && g < p.group; g += kWarps) {
    const float v = head_lse(item.scores + g * p.width, n, item.rules.alpha);
    if (tid % kWarp == 0) lse[g] = v;
  }
  if (tid == 0) ranker.least = ~0u, ranker.most = 0;
  __syncthreads();
  auto* keys = reinterpret_cast<std::uint32_t*>(item.scores);  // overwrites the first head's scores
  std::uint32_t least = ~0u, most = 0;
  for (int i = tid; i < n; i += kThreads) {
    float v[kMaxGroup];
#pragma unroll
    for (int g = 0; g < kMaxGroup; ++g) {
      if (g >= p.group) continue;
      v[g] = pooled_value(item.scores[g * p.width + i], logs, item.rules.alpha, lse[g]);
    }
    const std::uint32_t key = pool_unit(item.rules.pool, p.group, v);
    keys[i] = key;
    least = min(least, key), most = max(most, key);
  }
  least = __reduce_min_sync(~0u, least), most = __reduce_max_sync(~0u, most);
  if (tid % kWarp == 0) atomicMin(&ranker.least, least), atomicMax(&ranker.most, most);
  __syncthreads();
  const std::int64_t index = slot_index(p.s, p.slot_layer, item.seq_slot, item.kv_head);
  write_best(ranker, keys, n, item.region.n_select, item.region.first, p.s.selected_ids[0] + index * p.s.max_listed);
  if (tid == 0) p.s.n_selected[0][index] = item.region.n_select;
}

// Scratch of a launch.
struct Layout {
  std::int64_t width;
  std::int32_t rows;  // per launch
  std::size_t row_bytes;
  Layout(const KvSlots& s, std::int32_t n_rows)
      : width(eights(s.max_units())), row_bytes(static_cast<std::size_t>(s.n_heads * width) * sizeof(float)) {
    const auto fit = static_cast<std::int32_t>(std::min<std::size_t>(kScratchBytes / row_bytes, kMaxRows));
    rows = std::clamp(fit, 1, std::max(n_rows, 1));
  }
  std::size_t bytes() const { return static_cast<std::size_t>(rows) * row_bytes; }
};

template <typename T, int kDim>
void run(const Args& a, const CudaContext& context) {
  const int items = a.rows.n * a.s.n_kv_heads;
  const int blocks = std::clamp(4 * sm_count() / items, 1, (a.s.max_pages + kWarps - 1) / kWarps);
  launch(context, "score_controls", score_kernel<T, kDim>,
         dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(items)), dim3(kThreads), 0, a);
  launch(context, "rank_controls", rank_kernel, dim3(static_cast<unsigned>(items)), dim3(kThreads), 0, a);
}

}  // namespace

std::size_t select_controls_scratch_bytes(const KvSlots& s, std::int32_t n_rows) {
  return Layout(s, n_rows).bytes();
}

void select_controls_cuda(const SelectControls& c, const KvSlots& s, std::int32_t slot_layer,
                          const CudaContext& context) {
  const Layout layout(s, c.rows.n);
  Args a{};
  a.s = of_layer(s, slot_layer);
  a.pages = c.pages;
  a.layer = c.layer, a.slot_layer = slot_layer;
  a.group = s.n_heads / s.n_kv_heads;
  a.width = layout.width;
  a.scores = reinterpret_cast<float*>(c.scratch);
  for (std::int32_t first = 0; first < c.rows.n; first += layout.rows) {
    a.rows = {c.rows.seq_slots + first, c.rows.lengths + first, c.rows.reset + first,
              std::min(layout.rows, c.rows.n - first)};
    if (s.head_dim == 128) {
      s.f16 ? run<__half, 128>(a, context) : run<__nv_bfloat16, 128>(a, context);
    } else {
      s.f16 ? run<__half, 64>(a, context) : run<__nv_bfloat16, 64>(a, context);
    }
  }
}

}  // namespace mneme
