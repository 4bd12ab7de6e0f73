#include "src/selection/topk/unfused_select_cuda.h"

#include <algorithm>

#include "src/kv/kv_codes.cuh"
#include "src/selection/index/one_bit_cuda.h"
#include "src/selection/topk/unfused_rank.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = kScoreThreads, kWarps = kScoreWarps;
constexpr int kMaxRows = 64, kMaxChannels = 256 / kWarp;      // channels of a lane
constexpr std::size_t kScratchBytes = std::size_t{64} << 20;  // more rows than fit take several launches
constexpr int kStaticShared = 9 << 10;

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

__device__ __forceinline__ void write_random_scores(const UnfusedArgs& p, const Item& item) {
  const std::uint64_t where = (static_cast<std::uint64_t>(item.length) << 24) ^
                              (static_cast<std::uint64_t>(p.layer) << 12) ^
                              static_cast<std::uint64_t>(item.kv_head / p.s.shared);
  const std::uint64_t key = random_u64(item.plan.seed ^ (where * 0x9e3779b97f4a7c15ull), 0);
  const int step = static_cast<int>(gridDim.x) * kThreads;
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < item.n; i += step) {
    const std::uint64_t bits = random_u64(key, static_cast<std::uint64_t>(item.first + i));
    const auto x = static_cast<float>(static_cast<double>(bits >> 11) * 0x1p-53);
    for (int g = 0; g < item.n_scored; ++g) item.scores[g * p.width + i] = x;
  }
}

// ---- scores by vectors: a warp takes a unit, lane i its channels i, i + 32, ...

// A lane's channels of one vector.
struct Channels {
  float v[kMaxChannels];
};
template <typename V>
__device__ __forceinline__ Channels load_channels(const V& vector, int d) {
  Channels k{};
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kMaxChannels; ++i)
    if (i * kWarp + lane < d) k.v[i] = widen(vector[i * kWarp + lane]);
  return k;
}

// q . k, the same in all lanes.
__device__ __forceinline__ float dot(const float* q, const Channels& k, int d) {
  const int lane = threadIdx.x % kWarp;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxChannels; ++i)
    if (i * kWarp + lane < d) sum = fmaf(q[i * kWarp + lane], k.v[i], sum);
  return warp_sum(sum);
}

// Sum over channels of max(q hi, q lo). A NaN bound makes the unit NaN.
__device__ __forceinline__ float bound(const float* q, const Channels& hi, const Channels& lo, int d) {
  const int lane = threadIdx.x % kWarp;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxChannels; ++i) {
    if (i * kWarp + lane >= d) continue;
    const float x = q[i * kWarp + lane];
    sum += fmaxf(x, 0.0f) * hi.v[i] + fminf(x, 0.0f) * lo.v[i];
  }
  return warp_sum(sum);
}

// Key of token t of a group of 1-bit keys.
__device__ __forceinline__ Channels one_bit_key(const std::byte* group, int tokens, int t, int d) {
  const auto* level = reinterpret_cast<const __nv_bfloat16*>(group);
  const auto* bits = reinterpret_cast<const std::uint8_t*>(group + 4 * d);
  const int lane = threadIdx.x % kWarp;
  Channels k{};
#pragma unroll
  for (int i = 0; i < kMaxChannels; ++i) {
    const int c = i * kWarp + lane;
    if (c >= d) continue;
    const bool set = (bits[(c / 4 * tokens + t) / 2] >> (t % 2 * 4 + c % 4) & 1) != 0;
    const float z = widen(level[c]), s = widen(level[d + c]);
    k.v[i] = set ? z + s : z - s;
  }
  return k;
}

// Scores of unit `u` from its tokens' scores: their log-sum-exp times 1 / alpha (raw keys), or their mean (1-bit keys).
//   key: i -> channels of the unit's i-th token
template <typename F>
__device__ void score_tokens(const UnfusedArgs& p, const Item& item, const float* q, int u, int n_tokens, bool mean,
                             F&& key) {
  const int lane = threadIdx.x % kWarp, d = p.s.head_dim;
  float max[kMaxGroup], sum[kMaxGroup];
#pragma unroll
  for (int g = 0; g < kMaxGroup; ++g) max[g] = -INFINITY, sum[g] = 0;
  bool nan = false;
  for (int t = 0; t < n_tokens; ++t) {
    const Channels k = key(t);
#pragma unroll
    for (int g = 0; g < kMaxGroup; ++g) {
      if (g >= item.n_scored) continue;
      const float v = dot(q + g * d, k, d);
      if (mean || n_tokens == 1) {
        sum[g] += v;
        continue;
      }
      nan = nan || isnan(v);
      add_sum(max[g], sum[g], item.plan.scores.alpha * v, 1.0f);
    }
  }
#pragma unroll
  for (int g = 0; g < kMaxGroup; ++g) {
    if (g >= item.n_scored || lane != 0) continue;
    const float score = n_tokens == 1 ? sum[g]
                        : mean        ? sum[g] / static_cast<float>(n_tokens)
                        : nan         ? __int_as_float(0x7fc00000)
                                      : (max[g] + logf(sum[g])) / item.plan.scores.alpha;
    item.scores[g * p.width + u] = score;
  }
}

template <typename T>
__device__ void score_keys(const UnfusedArgs& p, const Item& item, const float* q, int u) {
  const int n_tokens = tokens_of_unit(item), first = (item.first + u) * n_tokens;
  score_tokens(p, item, q, u, n_tokens, false, [&](int t) {
    const std::byte* key = token_at(p.pages, p.layer, item.seq_slot, item.kv_head, first + t);
    return load_channels(KvRow<T>(key, p.s.head_dim, p.s.codes), p.s.head_dim);
  });
}

// Key of a stored token. This step's own is not in the sequence's pages yet where these are in host memory.
template <typename T>
__device__ __forceinline__ KvRow<T> stored_key(const UnfusedArgs& p, const Item& item, int token) {
  const DeviceCache& s = p.s;
  const std::byte* at =
      s.n_slots > 0 && token == item.stored - 1
          ? resident_token(s, item.plan, p.slot_layer, item.seq_slot, item.kv_head, token, item.stored)
          : token_at(p.pages, p.layer, item.seq_slot, item.kv_head, token);
  return KvRow<T>(at, s.head_dim, s.codes);
}

template <typename T>
__device__ void score_entry(const UnfusedArgs& p, const Item& item, const float* q, int u) {
  const UnitEntries& e = p.s.index.entries;
  const std::byte* entries = entries_of(p, item);
  const int n_tokens = tokens_of_unit(item), d = p.s.head_dim, lane = threadIdx.x % kWarp;
  if (is_one_bit(e.kind)) {
    const int first = (item.first + u) * n_tokens;
    score_tokens(p, item, q, u, n_tokens, true, [&](int t) {
      const int token = first + t;
      if (token / e.tokens == item.stored / e.tokens)  // of the open group (OneBit::score_open_group)
        return load_channels(stored_key<T>(p, item, token), d);
      return one_bit_key(entries + static_cast<std::int64_t>(token / e.tokens) * e.bytes, e.tokens, token % e.tokens,
                         d);
    });
    return;
  }
  const auto* entry = reinterpret_cast<const ReadAs<T>*>(entries + static_cast<std::int64_t>(item.first + u) * e.bytes);
  const bool box = e.kind != EntryKind::kCentroid;
  const Channels high = load_channels(entry, d), low = box ? load_channels(entry + d, d) : Channels{};
  for (int g = 0; g < item.n_scored; ++g) {
    float score = box ? bound(q + g * d, high, low, d) : dot(q + g * d, high, d);
    if (item.plan.scores.by_size) score += logf(static_cast<float>(n_tokens)) / item.plan.scores.alpha;
    if (lane == 0) item.scores[g * p.width + u] = score;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) score_kernel(UnfusedArgs p) {
  extern __shared__ float q[];
  launch_dependents();
  const SlotRow row = row_of(p, static_cast<int>(blockIdx.y));
  grid_dependency_wait();
  Item item;
  if (!item_at(p, row, static_cast<int>(blockIdx.y), false, item)) return;
  if (item.plan.scores.index == EntryKind::kNone) {
    write_random_scores(p, item);
    return;
  }
  load_queries(p, item, q);
  for (int u = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp; u < item.n;
       u += static_cast<int>(gridDim.x) * kWarps)
    item.plan.scores.index == EntryKind::kKeys ? score_keys<T>(p, item, q, u) : score_entry<T>(p, item, q, u);
}

// ---- rank

__global__ void __launch_bounds__(kThreads) rank_kernel(UnfusedArgs p) {
  __shared__ Ranker ranker;
  __shared__ HeadSums sums;
  launch_dependents();
  const int number = static_cast<int>(blockIdx.x);
  const SlotRow row = row_of(p, number);
  grid_dependency_wait();
  Item item;
  if (!item_at(p, row, number, true, item)) return;
  std::uint32_t* keys = pool_units(p, item, sums, ranker);
  write_selection<kMaxGroup>(p, item, keys, p.units + static_cast<std::int64_t>(number) * p.s.max_listed, sums, ranker);
}

// Units of any index, whose scores are in device memory, for select_own_item().
struct ScoredUnits {
  const UnfusedArgs& p;
  int blocks;
  std::uint32_t* keys;
  ClusterRank& shared;
  SlotRow row;
  Item item;

  __device__ __forceinline__ int number() const { return static_cast<int>(blockIdx.x) / blocks; }
  __device__ __forceinline__ int rank() const { return static_cast<int>(blockIdx.x) % blocks; }
  __device__ __forceinline__ ClusterArgs cluster() const { return {item.n_scored, blocks, p.width}; }

  __device__ __forceinline__ void prefetch() { row = row_of(p, number()); }
  __device__ __forceinline__ bool takes(int) { return item_at(p, row, number(), rank() == 0, item); }
  __device__ __forceinline__ Share share() const {
    return share_of(item.seq_slot, item.kv_head, item.index, item.n, rank(), blocks);
  }
  __device__ __forceinline__ void score(const Share& at) {
    if (pools_logs(item.plan.scores.pool)) sum_share(item, cluster(), at, item.scores + at.begin, shared.of_warps);
  }
  __device__ __forceinline__ bool pools() const { return true; }
  __device__ __forceinline__ void pool(const Share& at) {
    const float* scores = item.scores + at.begin;
    item.n_scored <= 4 ? pool_with_fixed<4>(item, cluster(), at, scores, keys, shared)
                       : pool_with_fixed<kMaxGroup>(item, cluster(), at, scores, keys, shared);
  }
  __device__ __forceinline__ void mark(const Share&) {
    std::int32_t* units = p.units + static_cast<std::int64_t>(number()) * p.s.max_listed;
    item.n_scored <= 4 ? mark_units<4>(p, item, keys, units, shared)
                       : mark_units<kMaxGroup>(p, item, keys, units, shared);
  }
};

// Where the keys of a KV head fit in shared memory.
__global__ void __launch_bounds__(kThreads) rank_cluster_kernel(UnfusedArgs p, int blocks) {
  extern __shared__ __align__(16) std::uint32_t keys[];  // of the KV head, in the cluster's first block
  __shared__ ClusterRank shared;
  ScoredUnits index{p, blocks, keys, shared};
  select_own_item(index, blocks);
}

// ---- one selection for all KV heads of a layer (SelectScope::kLayer): each pools its units to keys, and the keys of
// a row's KV heads become the one score of each of them.

__global__ void __launch_bounds__(kThreads) pool_heads_kernel(UnfusedArgs p) {
  __shared__ Ranker ranker;
  __shared__ HeadSums sums;
  launch_dependents();
  const SlotRow row = row_of(p, static_cast<int>(blockIdx.x));
  grid_dependency_wait();
  Item item;
  if (item_at(p, row, static_cast<int>(blockIdx.x), false, item) && item.plan.scope == SelectScope::kLayer)
    pool_units(p, item, sums, ranker);
}

// Pools two KV heads' scores of a unit; kMeanProb: logarithms of weights.
__device__ __forceinline__ float pool_two(Pool pool, float a, float b) {
  if (isnan(a) || isnan(b)) return NAN;
  const float most = fmaxf(a, b);
  if (pool == Pool::kMeanQk) return a + b;
  return pool == Pool::kMeanS && isfinite(most) ? most + log1pf(expf(-fabsf(a - b))) : most;
}

__global__ void __launch_bounds__(kThreads) pool_layer_kernel(UnfusedArgs p) {
  launch_dependents();
  const int heads = p.s.n_kv_heads, number = static_cast<int>(blockIdx.y) * heads;  // of the first KV head
  const SlotRow row = row_of(p, number);
  grid_dependency_wait();
  Item item;
  if (!item_at(p, row, number, false, item) || item.plan.scope != SelectScope::kLayer) return;
  const auto scores_of = [&](int head) { return item.scores + head * (p.group * p.width); };
  for (int u = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); u < item.n;
       u += static_cast<int>(gridDim.x) * kThreads) {
    const auto score = [&](int head) {
      const std::uint32_t key = reinterpret_cast<const std::uint32_t*>(scores_of(head))[u];
      return key == 0 ? NAN : value_of_key(key);
    };
    float pooled = score(0);
    for (int h = 1; h < heads; ++h) pooled = pool_two(item.plan.scores.pool, score(h), pooled);
    for (int h = 0; h < heads; ++h) scores_of(h)[u] = pooled;
  }
}

// Scratch of a launch: scores, terms (aligned to 8), units.
struct Layout {
  std::int64_t width;
  std::int32_t rows;  // per launch
  std::size_t score_bytes, unit_bytes, term_bytes;
  Layout(const DeviceCache& s, std::int32_t n_rows)
      : width(eights(s.max_units() / s.select_tokens + 1)),
        score_bytes(static_cast<std::size_t>(s.n_heads * width) * sizeof(float)),
        unit_bytes(static_cast<std::size_t>(eights(s.n_kv_heads * s.max_listed)) * sizeof(std::int32_t)),
        term_bytes(has_terms(s) ? static_cast<std::size_t>(s.n_heads) * sizeof(HeadTerms) : 0) {
    const auto fit = static_cast<std::int32_t>(std::min<std::size_t>(kScratchBytes / score_bytes, kMaxRows));
    rows = std::clamp(fit, 1, std::max(n_rows, 1));
  }
  static bool has_terms(const DeviceCache& s) {
    return s.selection.whole_attention || s.index.entries.frame_floats > 0;
  }
  std::size_t of_all(std::size_t bytes) const { return static_cast<std::size_t>(rows) * bytes; }
  std::size_t bytes() const { return of_all(score_bytes + unit_bytes + term_bytes); }
};

void rank(const UnfusedArgs& a, const CudaContext& context) {
  const int items = a.rows.n * a.s.n_kv_heads;
  static const int limit = [] {
    const int bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticShared;
    cuda_check(cudaFuncSetAttribute(rank_cluster_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "the unfused selection's shared memory");
    return bytes;
  }();
  static const int most = most_cluster(rank_cluster_kernel, kThreads, kMaxSelectBlocks);
  const std::size_t keys = static_cast<std::size_t>(a.width) * sizeof(std::uint32_t);
  if (keys > static_cast<std::size_t>(limit)) {
    launch(context, "rank_units", rank_kernel, dim3(static_cast<unsigned>(items)), dim3(kThreads), 0, a);
    return;
  }
  const int blocks = blocks_for(items, most);
  launch_clusters(context, "rank_units", rank_cluster_kernel, dim3(static_cast<unsigned>(items * blocks)),
                  dim3(kThreads), static_cast<unsigned>(blocks), keys, a, blocks);
}

void run(UnfusedArgs a, bool pools_layers, const CudaContext& context) {
  const int items = a.rows.n * a.s.n_kv_heads;
  if (a.terms != nullptr) compute_head_terms_cuda(a, context);
  if (a.s.index.entries.summarised()) {
    score_summaries_cuda(a, context);
  } else {
    const int blocks = std::clamp(8 * sm_count() / items, 1, (a.s.max_units() + kWarps - 1) / kWarps);
    with_kv_type(a.s, [&]<typename T>(T) {
      launch(context, "score_units", score_kernel<T>, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(items)),
             dim3(kThreads), static_cast<std::size_t>(a.group * a.s.head_dim) * sizeof(float), a);
    });
  }
  if (pools_layers) {
    launch(context, "pool_heads", pool_heads_kernel, dim3(static_cast<unsigned>(items)), dim3(kThreads), 0, a);
    const int blocks = std::clamp(2 * sm_count() / a.rows.n, 1, a.s.max_units() / kThreads + 1);
    launch(context, "pool_layer", pool_layer_kernel,
           dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(a.rows.n)), dim3(kThreads), 0, a);
    a.layers_pooled = true;
  }
  rank(a, context);
}

}  // namespace

std::size_t unfused_select_scratch_bytes(const DeviceCache& s, std::int32_t n_rows) {
  return Layout(s, n_rows).bytes();
}

void unfused_select_cuda(const UnfusedSelect& c, const DeviceCache& s, std::int32_t slot_layer,
                         const CudaContext& context) {
  const Layout layout(s, c.rows.n);
  UnfusedArgs a{};
  a.s = of_layer(s, slot_layer);
  a.pages = c.pages;
  a.when = c.when;
  a.layer = c.layer, a.slot_layer = slot_layer;
  a.group = s.n_heads / s.n_kv_heads;
  a.width = layout.width;
  a.scores = reinterpret_cast<float*>(c.scratch);
  a.units = reinterpret_cast<std::int32_t*>(c.scratch + layout.of_all(layout.score_bytes + layout.term_bytes));
  // Rows of scores are multiples of 32 bytes; 3 KV heads of an odd number of units are not one of 8.
  if (layout.term_bytes > 0) a.terms = reinterpret_cast<HeadTerms*>(c.scratch + layout.of_all(layout.score_bytes));
  for (std::int32_t first = 0; first < c.rows.n; first += layout.rows) {
    a.rows = {c.rows.seq_slots + first, c.rows.lengths + first, c.rows.reset + first,
              std::min(layout.rows, c.rows.n - first)};
    if (c.token_scratch != nullptr) {
      const bool of_scan = scan_computes_terms(s, a.rows.n);
      if (!of_scan) compute_head_terms_cuda(a, context);
      select_tokens_cuda({.rows = a.rows,
                          .when = c.when,
                          .scratch = c.token_scratch,
                          .pages = c.lists ? &c.pages : nullptr,
                          .layer = c.layer,
                          .sketch_terms = a.terms,
                          .terms_of_scan = of_scan},
                         s, slot_layer, context);
      continue;
    }
    if (c.sketch_pages) {
      if (!select_sketches_cuda(a, context)) rank(a, context);
      continue;
    }
    run(a, c.pools_layers, context);
  }
}

}  // namespace mneme
