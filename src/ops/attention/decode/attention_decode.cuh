// Shared parts of decode attention over pages and over lists of single tokens.
//
// Split-KV: pages of all (row, KV head) items form one sequence, which is cut into equal KV splits, one per thread
// block. Within a KV split each warp takes every n-th page and has its own ring of pages in shared memory, so that
// warps never wait for each other before the merge. For tables of tokens, 32 entries count as a page.
#pragma once

#include <algorithm>

#include "src/ops/attention/attention_cuda.h"
#include "src/ops/attention/attention_page_eight.cuh"
#include "src/ops/attention/head_dims_cuda.h"

namespace mneme::cuda::decode {

constexpr int kRows = 16;         // query rows of an mma: the group, zero-padded
constexpr int kMaxBlocks = 1024;  // thread blocks per launch
constexpr int kMaxItems = 4096;   // rows times KV heads
constexpr int kMaxWarps = 12, kFewWarps = 8;
constexpr int kMaxShare = 128;  // pages per thread block for which whole items matter more than more thread blocks

struct DecodeArgs {
  DecodeAttentionCuda a;
  KvTables tables;
  int layer, group, n_stages;
  float* partial_out;      // [blocks * 2][kRows][D]
  float2* partial_ml;      // [blocks * 2][kRows] maximum (base 2) and sum
  std::uint32_t* arrived;  // [items], 0 between launches
};

struct DecodeItem {
  int row, kv_head, from, length, first_page, n_pages;  // tokens [from, length)
};

// Index of an item's flags (ArrivingSlots, DecodeAttentionCuda::only).
__device__ __forceinline__ std::int64_t flag_index(const DecodeArgs& p, const DecodeItem& item) {
  return (static_cast<std::int64_t>(p.layer) + p.a.slots[item.row]) * p.tables.n_kv_heads + item.kv_head;
}

template <bool kHoles>
__device__ __forceinline__ DecodeItem item_at(const DecodeArgs& p, int i) {
  DecodeItem item;
  item.row = i / p.tables.n_kv_heads, item.kv_head = i % p.tables.n_kv_heads;
  item.length = p.a.lengths[item.row * p.a.length_stride + item.kv_head * p.a.length_head_stride];
  if (p.a.only != nullptr && item.length > 0 && __ldcg(p.a.only + flag_index(p, item)) == 0) item.length = 0;
  if constexpr (kHoles)
    if (item.length > 0) item.length -= shift_of(p.tables, p.layer, p.a.slots[item.row], item.kv_head);
  item.from = p.a.begins != nullptr ? min(p.a.begins[item.row], item.length)
              : p.a.window > 0      ? max(0, item.length - p.a.window)
                                    : 0;
  item.first_page = item.from / kKvPageTokens;
  item.n_pages = item.from < item.length ? (item.length + kKvPageTokens - 1) / kKvPageTokens - item.first_page : 0;
  return item;
}

// Splits n pages over m thread blocks: the first `more` have one page more than the others. 32-bit: a warp has little
// else to do, and 64-bit divisions took a tenth of a short step's time.
struct Split {
  unsigned each, more;
  __device__ __forceinline__ Split(unsigned n, unsigned m) : each(n / m), more(n - n / m * m) {}
  __device__ __forceinline__ int begin(unsigned block) const {
    return static_cast<int>(block * each + min(block, more));
  }
  __device__ __forceinline__ int block_of(unsigned page) const {
    const unsigned longer = more * (each + 1);
    return static_cast<int>(page < longer ? page / (each + 1) : more + (page - longer) / each);
  }
};

// Pages of all items in sequence, divided among thread blocks.
struct Pages {
  int all;    // including padding pages
  int used;   // thread blocks with work
  int share;  // pages per thread block where each works on one item only; else 0
};

// first[i]: pages before item i; first[n]: total. few: only some heads have pages, which over all thread blocks would be a
// page each, and as many parts to merge. Called by every thread of the block.
//
// A thread block whose pages belong to two items does one after the other, and the launch waits for it. So items are
// padded until each has thread blocks of its own, where that costs the others at most one more round of pages.
template <bool kHoles>
__device__ Pages count_pages(const DecodeArgs& p, int n_items, int* first, bool few = false) {
  __shared__ int warp_total[kMaxWarps], warp_most[kMaxWarps];
  const int threads = blockDim.x, each = (n_items + threads - 1) / threads;
  const int begin = min(n_items, static_cast<int>(threadIdx.x) * each), end = min(n_items, begin + each);
  int own = 0, most = 0;
  for (int i = begin; i < end; ++i) {
    const int n = item_at<kHoles>(p, i).n_pages;
    own += n, most = max(most, n);
  }
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warps = threads / kWarp;
  int up_to = own;
#pragma unroll
  for (int k = 1; k < kWarp; k *= 2) {
    const int v = __shfl_up_sync(~0u, up_to, k);
    if (lane >= k) up_to += v;
    most = max(most, __shfl_xor_sync(~0u, most, k));
  }
  if (lane == kWarp - 1) warp_total[warp] = up_to, warp_most[warp] = most;
  __syncthreads();
  int before = up_to - own, total = 0;
  for (int w = 0; w < n_warps; ++w) {
    if (w < warp) before += warp_total[w];
    total += warp_total[w], most = max(most, warp_most[w]);
  }
  const auto grid = static_cast<int>(gridDim.x);
  // Not for pages that were just recalled: a step of `window` then takes 2 % longer, for an unknown reason.
  if (n_items <= grid && total > 0 && (!p.a.tables_late || p.tables.of_tokens)) {
    const int blocks = grid / n_items, share = (most + blocks - 1) / blocks;
    const auto rounds = [&](int pages) { return (pages + n_warps - 1) / n_warps; };
    if (share <= kMaxShare && rounds(share) <= rounds((total + grid - 1) / grid) + 1) {
      for (int i = begin; i < end; ++i) first[i] = i * blocks * share;
      if (threadIdx.x == 0) first[n_items] = n_items * blocks * share;
      __syncthreads();
      return {n_items * blocks * share, n_items * blocks, share};
    }
  }
  for (int i = begin; i < end; ++i) {
    first[i] = before;
    before += item_at<kHoles>(p, i).n_pages;
  }
  if (begin < n_items && end == n_items) first[n_items] = before;
  __syncthreads();
  const int share = few ? n_warps : 1;
  return {total, min(grid, (total + share - 1) / share), 0};
}

// The item of page `page`.
__device__ __forceinline__ int item_of(const int* first, int n_items, int page) {
  int low = 0, high = n_items - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first[middle] <= page) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Masks scores of tokens outside of the item or without a bit in `there`, and converts to base 2.
template <typename Page>
__device__ __forceinline__ void mask_scores(float (&s)[kTokenTiles][4], const DecodeArgs& p, const DecodeItem& item,
                                            int page, std::uint32_t there) {
  const int at = (item.first_page + page) * kKvPageTokens, from = item.from;
  const float factor = p.a.scale * kLog2e;
  if (p.a.log_weights == nullptr && at >= from && at + kKvPageTokens <= item.length && there == ~0u) {  // most pages
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] *= factor;
    return;
  }
  const float* weights = nullptr;
  if (p.a.log_weights != nullptr)
    weights = p.a.log_weights +
              (static_cast<std::int64_t>(item.row) * p.tables.n_kv_heads + item.kv_head) * p.a.log_weight_stride;
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = at + Page::token_of(j, i % 2);
      const bool seen = token >= from && token < item.length && (there >> (token - at) & 1) != 0;
      float v = s[j][i] * factor;
      if (weights != nullptr && seen) v += weights[token] * kLog2e;
      s[j][i] = seen ? v : -INFINITY;
    }
}

// The item's queries.
template <typename Page>
__device__ __forceinline__ void load_item_queries(typename Page::Queries& q, const DecodeArgs& p,
                                                  const DecodeItem& item) {
  constexpr int kDim = Page::kDim;
  const int g = threadIdx.x % kWarp / 4;
  const auto* first = static_cast<const __nv_bfloat16*>(p.a.q) +
                      (static_cast<std::int64_t>(item.row) * p.a.n_heads + item.kv_head * p.group) * kDim;
  Page::load_queries(q, g < p.group ? first + g * kDim : nullptr, g + 8 < p.group ? first + (g + 8) * kDim : nullptr);
}

// LSE merge of `n` parts of one row, 128 columns at a time; a lane has columns 4 lane .. 4 lane + 3 of these, or none.
constexpr int kColumns = 4 * kWarp;
__device__ __forceinline__ bool has_columns(int dim, int first, int lane) {
  return first + 4 * lane < dim;
}
struct Merged {
  float max, sum;
  float4 out;
};
template <typename Part>
__device__ __forceinline__ Merged merge(int n, int lane, bool columns, Part&& part) {
  constexpr int kAtOnce = 4;  // parts whose loads overlap: one by one, each would cost its latency
  Merged m{-INFINITY, 0, {0, 0, 0, 0}};
  for (int first = 0; first < n; first += kWarp) {  // lane i weighs part first + i; then all lanes add their columns
    const int stop = min(kWarp, n - first);
    float4 v[kAtOnce];
    const auto load = [&](int from) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (columns && from + i < stop) v[i] = part(first + from + i).columns(lane);
    };
    const float2 ml = lane < stop ? part(first + lane).ml() : float2{-INFINITY, 0};
    load(0);
    float max = fmaxf(m.max, ml.x);
#pragma unroll
    for (int k = kWarp / 2; k > 0; k /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, k));
    const float base = max == -INFINITY ? 0.0f : max;
    const float before = exp2f(m.max - base), weight = exp2f(ml.x - base);
    m.max = max;
    m.sum = m.sum * before + warp_sum(ml.y * weight);
    m.out.x *= before, m.out.y *= before, m.out.z *= before, m.out.w *= before;
    for (int from = 0; from < stop; from += kAtOnce) {
      if (from > 0) load(from);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float w = __shfl_sync(~0u, weight, (from + i) % kWarp);
        if (!columns || from + i >= stop) continue;
        m.out.x += v[i].x * w, m.out.y += v[i].y * w, m.out.z += v[i].z * w, m.out.w += v[i].w * w;
      }
    }
  }
  return m;
}

template <int kDim>
__device__ __forceinline__ void write_row(const DecodeArgs& p, const DecodeItem& item, int g, int first, int lane,
                                          const Merged& m) {
  const std::int64_t head = static_cast<std::int64_t>(item.row) * p.a.n_heads + item.kv_head * p.group + g;
  const float inverse = m.sum == 0 ? 0.0f : 1.0f / m.sum;
  if (has_columns(kDim, first, lane)) {
    auto* out = reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.a.out) + head * kDim + first);
    out[lane] = {pack<__nv_bfloat16>(m.out.x * inverse, m.out.y * inverse),
                 pack<__nv_bfloat16>(m.out.z * inverse, m.out.w * inverse)};
  }
  if (lane == 0 && first == 0 && p.a.lse != nullptr)
    p.a.lse[head] = m.sum == 0 ? -INFINITY : (m.max + log2f(m.sum)) / kLog2e;
}

// A row of a part, in shared memory or written by another thread block (then loaded past this SM's L1, which may hold
// stale data).
struct SharedResult {
  const float2* max_and_sum;
  const float4* row;
  __device__ __forceinline__ float2 ml() const { return *max_and_sum; }
  __device__ __forceinline__ float4 columns(int lane) const { return row[lane]; }
};
struct GlobalResult {
  const float2* max_and_sum;
  const float4* row;
  __device__ __forceinline__ float2 ml() const { return __ldcg(max_and_sum); }
  __device__ __forceinline__ float4 columns(int lane) const { return __ldcg(row + lane); }
};

// Floats in a warp's ring.
template <typename Page>
__device__ __forceinline__ int ring_numbers(const DecodeArgs& p) {
  return p.n_stages * Page::kBytes / static_cast<int>(sizeof(float));
}

// Merges each row over the thread block's warps; one warp calls take(row, first column, merged). Warp i's rows go to
// `shared` + i * stride floats, its own ring until here, shared by all warps from here on.
template <typename Page, typename Take>
__device__ __forceinline__ void merge_warps(int group, const RunningSoftmax<Page::kDim>& rows, float* shared,
                                            int stride, float2* ml, Take&& take) {
  constexpr int kDim = Page::kDim;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warps = blockDim.x / kWarp;
  const int g = lane / 4, t = lane % 4;
  float* mine = shared + warp * stride;
#pragma unroll
  for (int i = 0; i < PageShape<kDim>::kValueTiles; ++i) {
    const int first = Page::channel_of(i, 0), second = Page::channel_of(i, 1);
    const auto put = [&](float* row, float a, float b) {
      if (second == first + 1) {
        *reinterpret_cast<float2*>(row + first) = {a, b};
      } else {
        row[first] = a, row[second] = b;
      }
    };
    put(mine + g * kDim, rows.out[i][0], rows.out[i][1]);
    if (group > 8) put(mine + (g + 8) * kDim, rows.out[i][2], rows.out[i][3]);
  }
  if (t == 0) {
    ml[warp * kRows + g] = {rows.max[0], rows.sum[0]};
    ml[warp * kRows + g + 8] = {rows.max[1], rows.sum[1]};
  }
  __syncthreads();
  for (int row = warp; row < group; row += n_warps) {
#pragma unroll
    for (int first = 0; first < kDim; first += kColumns)
      take(row, first, merge(n_warps, lane, has_columns(kDim, first, lane), [&](int i) {
             return SharedResult{ml + i * kRows + row,
                                 reinterpret_cast<const float4*>(shared + i * stride + row * kDim + first)};
           }));
  }
}

// Pages of an item that a thread block attends: [begin, end) of the item, the first at `at` of all items' pages.
struct ItemPages {
  int item, begin, end, at;
};

// Writes the thread block's result for its KV split: to the output if the item has no other split, else to the partial
// results, which the last thread block to arrive merges.
template <typename Page>
__device__ void finish_kv_split(const DecodeArgs& p, const DecodeItem& item, const ItemPages& pages, const Split& split,
                                const RunningSoftmax<Page::kDim>& rows, float* shared, float2* ml) {
  constexpr int kDim = Page::kDim;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warps = blockDim.x / kWarp;
  const bool whole = pages.begin == 0 && pages.end == item.n_pages;
  const int slot = blockIdx.x * 2 + (pages.begin > 0 ? 0 : 1);
  merge_warps<Page>(p.group, rows, shared, ring_numbers<Page>(p), ml, [&](int row, int column, const Merged& m) {
    if (whole) {
      write_row<kDim>(p, item, row, column, lane, m);
      return;
    }
    float* to = p.partial_out + (static_cast<std::int64_t>(slot) * kRows + row) * kDim + column;
    if (has_columns(kDim, column, lane)) reinterpret_cast<float4*>(to)[lane] = m.out;
    if (lane == 0) p.partial_ml[slot * kRows + row] = {m.max, m.sum};
  });
  if (whole) {
    __syncthreads();
    return;
  }

  // Thread blocks [first, last] have KV splits of this item, at least one page each.
  const int item_begin = pages.at - pages.begin;
  const int first = split.block_of(static_cast<unsigned>(item_begin)),
            last = split.block_of(static_cast<unsigned>(item_begin + item.n_pages - 1));
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(&p.arrived[pages.item], 1) == static_cast<std::uint32_t>(last - first);
    if (is_last) p.arrived[pages.item] = 0;
  }
  __syncthreads();
  if (is_last) {
    __threadfence();
    for (int row = warp; row < p.group; row += n_warps) {
#pragma unroll
      for (int column = 0; column < kDim; column += kColumns) {
        const Merged m = merge(last - first + 1, lane, has_columns(kDim, column, lane), [&](int i) {
          const int from = (first + i) * 2 + (i > 0 ? 0 : 1);
          const float* row_of = p.partial_out + (static_cast<std::int64_t>(from) * kRows + row) * kDim + column;
          return GlobalResult{p.partial_ml + from * kRows + row, reinterpret_cast<const float4*>(row_of)};
        });
        write_row<kDim>(p, item, row, column, lane, m);
      }
    }
  }
  __syncthreads();
}

// Outputs of items without tokens.
template <int kDim, bool kHoles>
__device__ __forceinline__ void write_empty(const DecodeArgs& p, int n_items) {
  const int warp = threadIdx.x / kWarp, n_warps = blockDim.x / kWarp;
  for (int i = blockIdx.x; i < n_items; i += gridDim.x) {
    const DecodeItem item = item_at<kHoles>(p, i);
    if (item.n_pages > 0) continue;
    for (int row = warp; row < p.group; row += n_warps)
      for (int column = 0; column < kDim; column += kColumns)
        write_row<kDim>(p, item, row, column, threadIdx.x % kWarp, {-INFINITY, 0, {0, 0, 0, 0}});
  }
}

struct Shape {
  int n_warps, n_stages;
  std::size_t shared_bytes;
};

// Two pages per warp, one in flight while one is read: 128 KiB where available, which leaves room on the SM for a
// thread block of the preceding or following GEMM. Three pages per warp read no faster.
//
// More than half of an SM's shared memory, so that every SM has one thread block: where two have room, the launch puts
// two on the SMs that the preceding kernel leaves first and none on others (27 sequences of 32K tokens in int8, a thread
// block with 67 KiB: 41.5 ms a step, where its phases one by one took 27).
template <typename... Params>
Shape shape_of(void (*kernel)(Params...), int page_bytes, int most_warps) {
  constexpr int kStatic = 8 << 10, kStages = 2;
  const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), pages = (most - kStatic) / page_bytes;
  const int n_warps = std::min(most_warps, pages >= 24   ? 12
                                           : pages >= 16 ? 8
                                           : pages >= 8  ? 4
                                           : pages >= 6  ? 3
                                                         : 2),
            bytes = std::max(n_warps * kStages * page_bytes, most / 2);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "decode attention's shared memory");
  return {n_warps, kStages, static_cast<std::size_t>(bytes)};
}

// Calls f with the type of a page, as std::type_identity.
template <typename F>
void with_page(const KvTables& tables, F&& f) {
  with_head_dim(tables.head_dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
    if (tables.codes == KvCodes::kNone) {
      tables.f16 ? f(std::type_identity<HalfPage<__half, kDim>>())
                 : f(std::type_identity<HalfPage<__nv_bfloat16, kDim>>());
    } else if constexpr (takes_eight_bit(kDim)) {
      tables.codes == KvCodes::kInt8 ? f(std::type_identity<EightBitPage<KvCodes::kInt8, kDim>>())
                                     : f(std::type_identity<EightBitPage<KvCodes::kFp8, kDim>>());
    }
  });
}

// Tables of single tokens.
void attend_listed(const DecodeArgs& args, const CudaContext& context);

}  // namespace mneme::cuda::decode
