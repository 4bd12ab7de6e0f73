// Two kernels, each over the whole device whatever the number of sequences: the scan writes scores
// (token_scan_cuda.cu), and here a cluster of blocks takes one KV head: each pools a share of the tokens and counts how
// many fall into each of 1,024 equal parts of their range; with all counts every block knows the part in which the k-th
// best is, ranks its own tokens in it against those of the others, by value and position, and writes down what is taken
// behind what the blocks before it have.
//
// One kernel that did both, scores in shared memory, took 34 us in place of 36 for 32,768 tokens of 32 KV heads, and a
// step 2 % longer: beside what else runs, fewer clusters of blocks that large find room.
#include <algorithm>
#include <vector>

#include "src/kernels/token_choose_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::tokens;  // NOLINT

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
constexpr int kBins = 1024;
constexpr int kMostBlocks = 16;                               // of a cluster
constexpr int kFewCandidates = 1024;                          // of a KV head: these are compared one by one
constexpr int kMostKept = 16 << 10;                           // tokens whose values a block keeps in shared memory
constexpr std::size_t kScratchBytes = std::size_t{64} << 20;  // more rows than fit come one after the other

// Of all of a KV head's tokens, by head.
struct Totals {
  float max[kMostGroup], min[kMostGroup], lse[kMostGroup];
};

__device__ void total(const Args& p, const RowInfo& info, int item, Totals& totals) {
  const int lane = threadIdx.x % kWarp, n = __ldcg(p.n_parts + item), warps = blockDim.x / kWarp;
  const bool logs = info.logs(p.group);
  if (threadIdx.x >= p.group && threadIdx.x < kMostGroup) totals.lse[threadIdx.x] = 0;  // heads that are not there
  for (int h = threadIdx.x / kWarp; h < p.group; h += warps) {
    const float4* parts = p.partial + (static_cast<std::int64_t>(item) * p.group + h) * p.max_parts;
    HeadStats x;
    x.clear();
#pragma unroll 8
    for (int i = lane; i < n; i += kWarp) {
      const float4 v = __ldcg(parts + i);
      if (logs) {
        x.merge({v.x, v.y, v.z}, info.alpha);
      } else {
        x.max = fmaxf(x.max, v.x), x.min = fminf(x.min, v.z);
      }
    }
    x.reduce(info.alpha, logs);
    if (lane == 0) {
      totals.max[h] = x.max, totals.min[h] = x.min;
      totals.lse[h] = x.max == -INFINITY ? INFINITY : scaled(info.alpha, x.max) + __logf(x.sum);  // inf: no probability
    }
  }
}

__device__ __forceinline__ float max_nan(float a, float b) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}
__device__ __forceinline__ float min_nan(float a, float b) {
  float v;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}

// What group_pool.h makes of four tokens' values in `group` heads, four heads at a time. Without branches, and short: a
// NaN goes through everything.
template <bool kLogs>
__device__ __forceinline__ void pool_tokens(const Args& p, const RowInfo& info, const Totals& totals,
                                            const float* scores, float (&out)[4]) {
  float most[4], sum[4];  // sum: of the values, of logarithms exp(. - most)
#pragma unroll
  for (int i = 0; i < 4; ++i) most[i] = -INFINITY, sum[i] = 0;
#pragma unroll 1
  for (int first = 0; first < p.group; first += 4) {
    float4 v[4];
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      v[h] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
      if (first + h < p.group) v[h] = __ldcg(reinterpret_cast<const float4*>(scores + (first + h) * p.width));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float x[4], m = most[i];
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        x[h] = i == 0 ? v[h].x : i == 1 ? v[h].y : i == 2 ? v[h].z : v[h].w;
        if constexpr (kLogs) x[h] = min_nan(info.alpha * x[h], 3.4028235e38f) - totals.lse[first + h];
        m = max_nan(m, x[h]);
      }
      if constexpr (kLogs) {
        const float base = max_nan(m, -3.4028235e38f);
        sum[i] *= __expf(most[i] - base);
#pragma unroll
        for (int h = 0; h < 4; ++h) sum[i] += __expf(x[h] - base);
      } else {
#pragma unroll
        for (int h = 0; h < 4; ++h) sum[i] += first + h < p.group ? x[h] : 0.0f;
      }
      most[i] = m;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] = most[i];
    if (kLogs && info.pool == GroupPool::kMeanProb) out[i] += __logf(sum[i]);
    if (!kLogs && info.pool == GroupPool::kMean) out[i] = sum[i] / static_cast<float>(p.group);
  }
}

// Grows with the value: it need not be more than that.
__device__ __forceinline__ int bin_of(float v, float low, float scale) {
  return static_cast<int>(fminf(fmaxf((v - low) * scale, 0.0f), static_cast<float>(kBins - 1)));
}

struct Selection {
  std::uint64_t candidates[kFewCandidates];  // of this block: value and position
  std::uint64_t rivals[kFewCandidates];      // of all blocks
  std::uint32_t bins[kBins];                 // of this block
  Totals totals;
  int of_warps[kWarps];
  int bin, need, equal;                 // tokens of higher bins are taken, and `need` of the `equal` ones in this
  std::uint32_t n_candidates, n_taken;  // of this block
  int n_before;                         // candidates that blocks before this one take
};

// The sum of what threads before this one have.
__device__ __forceinline__ int sum_before(int own, Selection& sel, int& all) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int up_to = own;
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const int v = __shfl_up_sync(~0u, up_to, d);
    if (lane >= d) up_to += v;
  }
  __syncthreads();
  if (lane == kWarp - 1) sel.of_warps[warp] = up_to;
  __syncthreads();
  int before = up_to - own;
  all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += sel.of_warps[w];
    all += sel.of_warps[w];
  }
  return before;
}

// The bin in which the k-th best of all blocks' is.
__device__ __forceinline__ void find_bin(int blocks, int k, Selection& sel) {
  static_assert(kBins == 2 * kThreads, "a thread has a pair");
  const int top = kBins - 1 - 2 * static_cast<int>(threadIdx.x);  // thread 0 has the highest
  uint2 of_block[kMostBlocks];                                    // all on their way before the first is looked at
#pragma unroll
  for (int b = 0; b < kMostBlocks; ++b)
    of_block[b] = b < blocks ? get_two(address_in(&sel.bins[top - 1], b)) : uint2{0, 0};
  int own[2] = {0, 0};
#pragma unroll
  for (int b = 0; b < kMostBlocks; ++b)
    own[0] += static_cast<int>(of_block[b].y), own[1] += static_cast<int>(of_block[b].x);
  int all, before = sum_before(own[0] + own[1], sel, all);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (before < k && before + own[i] >= k) sel.bin = top - i, sel.need = k - before, sel.equal = own[i];
    before += own[i];
  }
  __syncthreads();
}

// Value and position, all different; the larger is the better one.
__device__ __forceinline__ std::uint64_t rank_of(float value, int i) {
  return static_cast<std::uint64_t>(sort_key(value)) << 32 | static_cast<std::uint32_t>(i);
}

// The least rank that is taken, of tokens whose values are (nearly) all the same: byte by byte.
template <typename F>
__device__ std::uint64_t least_rank(int blocks, Selection& sel, F&& for_candidates) {
  std::uint64_t prefix = 0;
  int left = sel.need;
  for (int shift = 56; shift >= 0; shift -= 8) {
    cluster_sync();
    for (int i = threadIdx.x; i < 256; i += kThreads) sel.bins[i] = 0;
    __syncthreads();
    for_candidates([&](std::uint64_t rank) {
      if (shift == 56 || rank >> (shift + 8) == prefix) atomicAdd(&sel.bins[rank >> shift & 255], 1u);
    });
    cluster_sync();
    int byte = 256, above = 0, here = 0;
    do {
      above += here;
      --byte;
      here = 0;
      for (int b = 0; b < blocks; ++b) here += static_cast<int>(get(address_in(&sel.bins[byte], b)));
    } while (above + here < left);
    left -= above;
    prefix = prefix << 8 | static_cast<std::uint64_t>(byte);
  }
  return prefix;
}

// For measuring: whether a position is among the n_select of which `turnover` are others than at the step before. They
// walk through a permutation of the candidates, so that none comes back soon.
__device__ void draw_mask(const RowInfo& info, std::int64_t index, int begin, int own, std::uint32_t* mask) {
  for (int i = threadIdx.x; i < (own + 31) / 32; i += kThreads) mask[i] = 0;
  __syncthreads();
  const int n = info.n - info.skip, stable = n >= 256 ? n / 128 * 128 : n;  // the same for many steps
  const auto m = static_cast<std::uint64_t>(max(stable, info.n_select));
  const std::uint64_t step = m % 7919 == 0 ? 7907 : 7919;
  const auto moved =
      static_cast<std::uint64_t>(static_cast<double>(info.length) * static_cast<double>(info.turnover) * info.n_select);
  const std::uint64_t first = moved + draw(static_cast<std::uint32_t>(index), 7);
  for (int j = threadIdx.x; j < info.n_select; j += kThreads) {
    const int i = info.skip + static_cast<int>((first + static_cast<std::uint64_t>(j)) % m * step % m) - begin;
    if (i >= 0 && i < own) atomicOr(&mask[i / 32], 1u << i % 32);
  }
  __syncthreads();
}

// The sum of what lanes before `rank` have, of a number that each lane has of one block.
__device__ __forceinline__ int sum_of_blocks(int v, int rank) {
  return __reduce_add_sync(~0u, static_cast<int>(threadIdx.x) % kWarp < rank ? v : 0);
}

__host__ __device__ constexpr int share_of(int n, int blocks) {
  return (n + blocks * kStage - 1) / (blocks * kStage) * kStage;
}

// values [kept], then a mask of a share.
__global__ void __launch_bounds__(kThreads, 1) select_kernel(Args p, int blocks, int kept) {
  extern __shared__ __align__(16) float values[];
  __shared__ Selection sel;
  cluster_begin();
  let_next_start();
  wait_for_previous();
  cluster_begun();
  auto* mask = reinterpret_cast<std::uint32_t*>(values + kept);
  const int tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp, heads = p.s.n_kv_heads;
  const int rank = blockIdx.x % blocks, cluster = blockIdx.x / blocks, n_clusters = gridDim.x / blocks;
  bool used = false;  // shared memory of the cluster
  for (int item = cluster; item < p.rows.n * heads; item += n_clusters) {
    const RowInfo info = row_info(p, item / heads);
    if (info.n_select == 0) continue;
    if (used) cluster_sync();
    used = true;
    const bool logs = info.logs(p.group);
    const int each = share_of(info.n, blocks), begin = min(info.n, rank * each), own = min(info.n - begin, each);
    float* scores = p.scores + static_cast<std::int64_t>(item) * p.group * p.width + begin;
    for (int i = tid; i < kBins; i += kThreads) sel.bins[i] = 0;
    if (tid == 0) sel.n_candidates = sel.n_taken = 0;
    total(p, info, item, sel.totals);
    __syncthreads();
    float low = logs ? -INFINITY : INFINITY, high = -INFINITY;
    for (int h = 0; h < p.group; ++h) {
      if (!logs) {
        low = fminf(low, sel.totals.min[h]), high = fmaxf(high, sel.totals.max[h]);
      } else if (sel.totals.lse[h] < INFINITY) {
        low = fmaxf(low, scaled(info.alpha, sel.totals.min[h]) - sel.totals.lse[h]);
        high = fmaxf(high, scaled(info.alpha, sel.totals.max[h]) - sel.totals.lse[h]);
      }
    }
    if (logs && info.pool == GroupPool::kMeanProb) high += __logf(static_cast<float>(p.group));
    const float range = high - low, scale = range > 0 && range < INFINITY ? static_cast<float>(kBins) / range : 0.0f;
    const auto counts = [&](int i) { return begin + i >= info.skip && i < own; };
    const std::uint32_t one = gridDim.y;  // a constant would become the increment, which takes one address at a time

#pragma unroll 1
    for (int i = 4 * tid; i < own; i += 4 * kThreads) {
      float v[4];
      if (p.group == 1) {
        const float4 four = __ldcg(reinterpret_cast<const float4*>(scores + i));
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
      } else if (logs) {
        pool_tokens<true>(p, info, sel.totals, scores + i, v);
      } else {
        pool_tokens<false>(p, info, sel.totals, scores + i, v);
      }
      if (i < kept) {
        *reinterpret_cast<float4*>(values + i) = {v[0], v[1], v[2], v[3]};
      } else if (p.group > 1) {
        *reinterpret_cast<float4*>(scores + i) = {v[0], v[1], v[2], v[3]};
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (counts(i + j)) atomicAdd(&sel.bins[bin_of(v[j], low, scale)], one);
    }
    const auto value = [&](int i) { return i < kept ? values[i] : __ldcg(scores + i); };
    __syncthreads();
    cluster_sync();
    find_bin(blocks, info.n_select, sel);
    const bool whole = sel.need == sel.equal, few = sel.equal <= kFewCandidates;
    const int bin = sel.bin, n_words = (own + 31) / 32;
    int n_above = 0;
    for (int word = warp; word < n_words; word += kWarps) {
      const int i = word * 32 + lane;
      const float v = counts(i) ? value(i) : 0.0f;
      const int of = counts(i) ? bin_of(v, low, scale) : -1;
      const unsigned taken = __ballot_sync(~0u, of > bin || (whole && of == bin));
      if (lane == 0) mask[word] = taken;
      n_above += __popc(taken);
      if (!whole && few && of == bin) sel.candidates[atomicAdd(&sel.n_candidates, 1u)] = rank_of(v, begin + i);
    }
    if (lane == 0) atomicAdd(&sel.n_taken, static_cast<std::uint32_t>(n_above));
    __syncthreads();
    cluster_sync();  // all blocks know what they take for certain, and have their candidates
    // A lane asks each block, all at once: one after the other they would wait.
    int n_there = 0, taken_there = 0;
    if (lane < blocks) {
      n_there = static_cast<int>(get(address_in(&sel.n_candidates, lane)));
      taken_there = static_cast<int>(get(address_in(&sel.n_taken, lane)));
    }
    int first = sum_of_blocks(taken_there, rank);
    if (!whole && few) {
      const int n_rivals = sum_of_blocks(n_there, kWarp), rivals_before = sum_of_blocks(n_there, rank);
      for (int b = warp; b < blocks; b += kWarps) {
        const int n = __shfl_sync(~0u, n_there, b), to = sum_of_blocks(n_there, b);
        const std::uint32_t there = address_in(sel.candidates, b);
        for (int i = lane; i < n; i += kWarp) {
          const uint2 v = get_two(there + i * 8);
          sel.rivals[to + i] = static_cast<std::uint64_t>(v.y) << 32 | v.x;
        }
      }
      if (tid == 0) sel.n_before = 0;
      __syncthreads();
      const int stop = rivals_before + static_cast<int>(sel.n_candidates);
      for (int i = tid; i < stop; i += kThreads) {  // its own, and those that stand before what it writes
        const std::uint64_t mine = sel.rivals[i];
        int above = 0;
        for (int j = 0; j < n_rivals; ++j) above += sel.rivals[j] > mine;
        if (above >= sel.need) continue;
        const int at = static_cast<int>(mine & 0xffffffffu) - begin;
        if (i < rivals_before) {
          atomicAdd(&sel.n_before, 1);
        } else {
          atomicOr(&mask[at / 32], 1u << at % 32);
        }
      }
      __syncthreads();
      first += sel.n_before;
    } else if (!whole) {
      const auto for_candidates = [&](auto&& f) {
        for (int i = tid; i < own; i += kThreads)
          if (counts(i) && bin_of(value(i), low, scale) == bin) f(rank_of(value(i), begin + i));
      };
      const std::uint64_t least = least_rank(blocks, sel, for_candidates);
      for_candidates([&](std::uint64_t r) {
        const int at = static_cast<int>(r & 0xffffffffu) - begin;
        if (r >= least) atomicOr(&mask[at / 32], 1u << at % 32);
      });
      __syncthreads();
    }
    const std::int64_t index = slot_index(p.s, p.layer, info.place, item % heads);
    if (info.turnover >= 0) draw_mask(info, index, begin, own, mask);

    // In order: behind what the blocks before this one take.
    const int words = (n_words + kThreads - 1) / kThreads, from = min(n_words, tid * words),
              to = min(n_words, from + words);
    int mine = 0, all;
    for (int i = from; i < to; ++i) mine += __popc(mask[i]);
    int at = sum_before(mine, sel, all);
    if ((!whole && !few) || info.turnover >= 0) {  // another number than was told
      cluster_sync();
      if (tid == 0) sel.n_taken = static_cast<std::uint32_t>(all);
      __syncthreads();
      cluster_sync();
      first = sum_of_blocks(lane < blocks ? static_cast<int>(get(address_in(&sel.n_taken, lane))) : 0, rank);
    }
    at += first;
    const int when = static_cast<int>(p.when);
    std::int32_t* out = p.s.chosen[when] + index * p.s.max_listed;
    for (int i = from; i < to; ++i)
      for (std::uint32_t word = mask[i]; word != 0; word &= word - 1)
        out[at++] = info.base + begin + i * 32 + __ffs(static_cast<int>(word)) - 1;
    if (rank == 0 && tid == 0) p.s.n_chosen[when][index] = info.n_select;
  }
  cluster_sync();  // nobody reads what is no more
}

// ---- launches

// The scratch of a launch: arrays of so many items, one after the other.
struct Layout {
  std::int64_t width, parts, items;
  std::int32_t rows;  // of a launch
  int group;
  Layout(const KvSlots& s, std::int32_t n_rows) : group(s.n_heads / s.n_kv_heads) {
    const std::int64_t tokens = std::int64_t{s.max_pages} * kKvPageTokens + kStage;
    width = (tokens + kStage - 1) / kStage * kStage;
    // A block has at least as many stages as it has warps, so that a head's are those of so many blocks and two more.
    parts = width / kStage + 2 * kScanWarps;
    items = s.n_kv_heads;
    const auto fit = static_cast<std::int64_t>(kScratchBytes / bytes());
    rows = static_cast<std::int32_t>(std::clamp<std::int64_t>(fit, 1, std::min(std::max(n_rows, 1), kMostRows)));
    items *= rows;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(items * (group * (width * 4 + parts * 16) + 16)); }
  void place(std::byte* at, Args& a) const {
    a.scores = reinterpret_cast<float*>(at);
    a.partial = reinterpret_cast<float4*>(at + items * group * width * 4);
    a.n_parts = reinterpret_cast<int*>(a.partial + items * group * parts);
  }
};

template <typename F>
void for_rows(const ChooseTokens& c, const KvSlots& s, std::int32_t slot_layer, F&& run) {
  const Layout layout(s, c.rows.n);
  Args a{};
  a.s = of_layer(s, slot_layer);
  a.when = c.when;
  a.ahead = c.ahead;
  a.early = c.early;
  a.layer = slot_layer;
  a.group = layout.group;
  a.max_parts = static_cast<int>(layout.parts);
  a.width = layout.width;
  layout.place(c.scratch, a);
  for (std::int32_t first = 0; first < c.rows.n; first += layout.rows) {
    a.rows = {c.rows.places + first, c.rows.lengths + first, c.rows.anew + first,
              std::min(layout.rows, c.rows.n - first)};
    run(a);
  }
}

// As many blocks for a KV head as the device takes of all KV heads at once.
void select(const Args& a, const CudaContext& context) {
  static const std::vector<int> clusters = [] {  // by their blocks: how many the device takes at once
    cuda_check(cudaFuncSetAttribute(select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - (24 << 10)),
               "the choice of tokens' shared memory");
    return active_clusters(select_kernel, kThreads, kMostBlocks);
  }();
  const int items = a.rows.n * a.s.n_kv_heads;
  int blocks = 1;
  for (int more = 2; more <= static_cast<int>(clusters.size()) && more * items <= multiprocessors(); ++more)
    if (clusters[static_cast<std::size_t>(more - 1)] >= items) blocks = more;
  const int share = share_of(static_cast<int>(a.width), blocks), kept = std::min(share, kMostKept);
  launch_clusters(context, "select_tokens", select_kernel, dim3(static_cast<unsigned>(items * blocks)), dim3(kThreads),
                  static_cast<unsigned>(blocks),
                  static_cast<std::size_t>(kept) * 4 + static_cast<std::size_t>(share / 32) * 4, a, blocks, kept);
}

}  // namespace

std::size_t choose_tokens_scratch_bytes(const KvSlots& s, std::int32_t n_rows) {
  return Layout(s, n_rows).bytes();
}

void choose_tokens_cuda(const ChooseTokens& c, const KvSlots& s, std::int32_t slot_layer, const CudaContext& context) {
  for_rows(c, s, slot_layer, [&](const Args& a) {
    scan(a, context);
    select(a, context);
  });
}

void scan_tokens_cuda(const ChooseTokens& c, const KvSlots& s, std::int32_t slot_layer, const CudaContext& context) {
  for_rows(c, s, slot_layer, [&](const Args& a) { scan(a, context); });
}

}  // namespace mneme
