// Pages of all (row, KV head) items stand in one line, which is cut into equal stretches, one a block. Within a stretch
// each warp has every n-th page, with a ring of pages of its own in shared memory, so that warps never wait for each
// other before the merge. Of tables whose entries are tokens, 32 entries are a page.
#include <algorithm>

#include "src/kernels/attention_cuda.h"
#include "src/kernels/attention_page.cuh"
#include "src/kernels/head_dims_cuda.h"
#include "src/kernels/kv_slots_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kRows = 16;          // query rows of a product: the group, and nothing below it
constexpr int kMostBlocks = 1024;  // of a launch
constexpr int kMostItems = 4096;   // rows times KV heads
constexpr int kMostWarps = 8;
constexpr int kMostShare = 128;  // pages of a block for which whole items matter more than a few more blocks

struct Args {
  DecodeAttentionCuda a;
  KvTables tables;
  int layer, group, n_stages;
  float* partial_out;      // [blocks * 2][kRows][D]
  float2* partial_ml;      // [blocks * 2][kRows] maximum (base 2) and sum
  std::uint32_t* arrived;  // [items], 0 between launches
};

struct Item {
  int row, kv_head, from, length, first_page, n_pages;  // tokens [from, length)
};

// Tables with holes, and those whose slots are being filled, have kernels of their own: those of all others do not ask.
enum class TableKind { kWhole, kHoles, kArriving };

template <bool kHoles>
__device__ __forceinline__ Item item_at(const Args& p, int i) {
  Item item;
  item.row = i / p.tables.n_kv_heads, item.kv_head = i % p.tables.n_kv_heads;
  item.length = p.a.lengths[item.row * p.a.length_stride + item.kv_head * p.a.length_head_stride];
  if constexpr (kHoles)
    if (item.length > 0) item.length -= shift_of(p.tables, p.layer, p.a.slots[item.row], item.kv_head);
  item.from = p.a.begins != nullptr ? min(p.a.begins[item.row], item.length)
              : p.a.window > 0      ? max(0, item.length - p.a.window)
                                    : 0;
  item.first_page = item.from / kKvPageTokens;
  item.n_pages = item.from < item.length ? (item.length + kKvPageTokens - 1) / kKvPageTokens - item.first_page : 0;
  return item;
}

// kArriving: where an item's flags are.
__device__ __forceinline__ std::int64_t flag_index(const Args& p, const Item& item) {
  return (static_cast<std::int64_t>(p.layer) + p.a.slots[item.row]) * p.tables.n_kv_heads + item.kv_head;
}

// n pages for m blocks: the first `more` have one more than the others. 32-bit, because a warp has little else to do
// and 64-bit divisions were a tenth of a short step's time.
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

// Pages of all items one after the other, which the blocks share.
struct Pages {
  int all;   // with those that stand for nothing
  int used;  // blocks
};

// first[i]: pages before item i; first[n]: all. Every thread of the block takes part.
//
// A block whose pages are of two items does one after the other, and all wait for it: so items are filled up with pages
// that stand for nothing until each has blocks of its own, where that costs the others one round of pages at most.
template <bool kHoles>
__device__ Pages count_pages(const Args& p, int n_items, int* first) {
  __shared__ int warp_total[kMostWarps], warp_most[kMostWarps];
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
  // Of pages that are recalled just before, not: a step of `window` takes 2 % longer then, for a reason not found.
  if (n_items <= grid && total > 0 && (!p.a.tables_late || p.tables.of_tokens)) {
    const int blocks = grid / n_items, share = (most + blocks - 1) / blocks;
    const auto rounds = [&](int pages) { return (pages + n_warps - 1) / n_warps; };
    if (share <= kMostShare && rounds(share) <= rounds((total + grid - 1) / grid) + 1) {
      for (int i = begin; i < end; ++i) first[i] = i * blocks * share;
      if (threadIdx.x == 0) first[n_items] = n_items * blocks * share;
      __syncthreads();
      return {n_items * blocks * share, n_items * blocks};
    }
  }
  for (int i = begin; i < end; ++i) {
    first[i] = before;
    before += item_at<kHoles>(p, i).n_pages;
  }
  if (begin < n_items && end == n_items) first[n_items] = before;
  __syncthreads();
  return {total, min(grid, total)};
}

template <typename T, int kDim, TableKind kKind>
struct Stretch {  // one item's part of a block's work
  static constexpr bool kHoles = kKind == TableKind::kHoles, kArriving = kKind == TableKind::kArriving;
  const Args& p;
  const Item& item;
  const std::int32_t* table;
  std::uint32_t ring;  // this warp's pages
  int begin, end;      // pages of the item
  bool& waited;
  bool arrived = false;  // kArriving: what was on its way

  // The lane's entry of a page's tokens: read a page ahead, because it is a wait before the next one.
  __device__ __forceinline__ std::int32_t token_entry(int page) const {
    const int at = (item.first_page + page) * kKvPageTokens + threadIdx.x % kWarp;
    return page < end && at < item.length ? table[at] : 0;
  }
  __device__ __forceinline__ void fetch_tokens(int page, int stage, std::int32_t entry) const {
    if (page < end) {
      const int at = (item.first_page + page) * kKvPageTokens;
      fetch_listed<kDim>(ring + stage * PageShape<kDim>::kBytes, p.tables.base, entry, item.from - at,
                         item.length - at);
    }
    copy_async_commit();
  }

  // Which tokens of a page of the table are there.
  __device__ __forceinline__ std::uint32_t mask_of(int page) const {
    if constexpr (!kHoles) return ~0u;
    return p.tables.masks[table - p.tables.blocks + page];
  }

  // kArriving: whether a page can be read without waiting for it. A whole warp asks.
  __device__ __forceinline__ bool is_here(int page) {
    if (page >= end || arrived || table[item.first_page + page] >= 0) return true;
    arrived = __shfl_sync(~0u, read_flag(arrival_flag()) == ticket(), 0);
    return arrived;
  }
  __device__ __forceinline__ void await_arrival() {
    if (arrived) return;
    if (threadIdx.x % kWarp == 0) await_flag(arrival_flag(), ticket());
    __syncwarp();
    arrived = true;
  }
  __device__ __forceinline__ const std::int32_t* arrival_flag() const {
    return p.a.arriving.arrived_for + flag_index(p, item);
  }
  __device__ __forceinline__ std::int32_t ticket() const { return p.a.arriving.tickets[item.row]; }

  __device__ __forceinline__ void fetch(int page, int stage) {
    if (page < end) {
      const int at = item.first_page + page;
      if (!waited && page == item.n_pages - 1) {  // the newest token: the kernel before this one writes it
        wait_for_previous();
        waited = true;
      }
      const int entry = p.a.page_ring > 0 ? at % p.a.page_ring : at;
      std::int32_t number = table[entry];
      if constexpr (kArriving) {
        if (number < 0) await_arrival();
        number &= ~kOnItsWay;
      }
      const std::byte* block = p.tables.base + static_cast<std::int64_t>(number) * PageShape<kDim>::kBytes;
      const std::uint32_t there = mask_of(at);
      if (there == ~0u) {
        fetch_page<kDim, kWarp>(ring + stage * PageShape<kDim>::kBytes, block, item.from - at * kKvPageTokens,
                                item.length - at * kKvPageTokens, threadIdx.x % kWarp);
      } else {
        fetch_page<kDim, kWarp>(ring + stage * PageShape<kDim>::kBytes, block, item.from - at * kKvPageTokens,
                                item.length - at * kKvPageTokens, threadIdx.x % kWarp, there);
      }
    }
    copy_async_commit();
  }

  __device__ __forceinline__ void mask(float (&s)[kTokenTiles][4], int page) const {
    const int t = threadIdx.x % 4, at = (item.first_page + page) * kKvPageTokens;
    const int from = item.from;
    const float factor = p.a.scale * kLog2e;
    const std::uint32_t there = mask_of(item.first_page + page);
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
        const int token = at + j * 8 + 2 * t + i % 2;
        const bool seen = token >= from && token < item.length && (there >> (token - at) & 1) != 0;
        float v = s[j][i] * factor;
        if (weights != nullptr && seen) v += weights[token] * kLog2e;
        s[j][i] = seen ? v : -INFINITY;
      }
  }

  __device__ __forceinline__ void run(RunningRows<kDim>& rows, int n_warps) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4;
    const int stages = p.n_stages;
    const bool of_tokens = p.tables.of_tokens;
    std::int32_t entry = 0;
    rows.clear();
    if (of_tokens) {
      if (!waited) {
        wait_for_previous();
        waited = true;
      }
      for (int i = 0; i < stages - 1; ++i) {
        const int page = begin + warp + i * n_warps;
        fetch_tokens(page, i, token_entry(page));
      }
      entry = token_entry(begin + warp + (stages - 1) * n_warps);
    } else {
      for (int i = 0; i < stages - 1; ++i) fetch(begin + warp + i * n_warps, i);
    }
    if (!waited) {
      wait_for_previous();
      waited = true;
    }
    std::uint32_t q[PageShape<kDim>::kKeySteps][4];
    const auto* first = static_cast<const __nv_bfloat16*>(p.a.q) +
                        (static_cast<std::int64_t>(item.row) * p.a.n_heads + item.kv_head * p.group) * kDim;
    load_queries<T, kDim>(q, g < p.group ? first + g * kDim : nullptr,
                          g + 8 < p.group ? first + (g + 8) * kDim : nullptr);
    int stage = 0, next_stage = stages - 1;
    for (int page = begin + warp; page < end; page += n_warps) {
      const int next = page + (stages - 1) * n_warps;
      bool later = false;  // this page first: the next one is not here
      if constexpr (kArriving) later = !is_here(next);
      if (of_tokens) {
        fetch_tokens(next, next_stage, entry);
        entry = token_entry(page + stages * n_warps);
      } else if (later) {
        copy_async_commit();
      } else {
        fetch(next, next_stage);
      }
      if (stages == 2) {
        copy_async_wait<1>();
      } else if (stages == 3) {
        copy_async_wait<2>();
      } else {
        copy_async_wait<3>();
      }
      __syncwarp();
      const std::uint32_t at = ring + stage * PageShape<kDim>::kBytes;
      float s[kTokenTiles][4];
      score_page<T, kDim>(s, q, at);
      mask(s, page);
      rows.template take<T>(s, at);
      __syncwarp();
      if (later) fetch(next, next_stage);
      next_stage = stage;
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
    copy_async_wait<0>();
    rows.finish();
  }
};

// Weighted mean of what `n` parts have of one row, of 128 columns of it at a time; lane has columns 4 lane .. 4 lane +
// 3 of these, or none.
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
  Merged m{-INFINITY, 0, {0, 0, 0, 0}};
  for (int first = 0; first < n; first += kWarp) {  // lane i weighs part first + i; then all add their columns
    const float2 ml = first + lane < n ? part(first + lane).ml : float2{-INFINITY, 0};
    float max = fmaxf(m.max, ml.x);
#pragma unroll
    for (int k = kWarp / 2; k > 0; k /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, k));
    const float base = max == -INFINITY ? 0.0f : max;
    const float before = exp2f(m.max - base), weight = exp2f(ml.x - base);
    m.max = max;
    m.sum = m.sum * before + warp_sum(ml.y * weight);
    m.out.x *= before, m.out.y *= before, m.out.z *= before, m.out.w *= before;
    const int stop = min(kWarp, n - first);
#pragma unroll 8
    for (int i = 0; i < stop; ++i) {
      const float w = __shfl_sync(~0u, weight, i);
      if (!columns) continue;
      const float4 v = part(first + i).columns(lane);
      m.out.x += v.x * w, m.out.y += v.y * w, m.out.z += v.z * w, m.out.w += v.w * w;
    }
  }
  return m;
}

template <int kDim>
__device__ __forceinline__ void write_row(const Args& p, const Item& item, int g, int first, int lane,
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

// A row of a part, in shared memory or from another block (past this multiprocessor's L1, which may have what stood
// there before).
struct SharedRow {
  float2 ml;
  const float4* row;
  __device__ __forceinline__ float4 columns(int lane) const { return row[lane]; }
};
struct PartialRow {
  float2 ml;
  const float4* row;
  __device__ __forceinline__ float4 columns(int lane) const { return __ldcg(row + lane); }
};

// The block's result for its stretch, to the output when that is all there is of the item, else to the partial results;
// whoever comes last merges these.
template <int kDim>
__device__ void finish_stretch(const Args& p, const Item& item, int item_index, int begin, int end, int flat_begin,
                               const Split& split, RunningRows<kDim>& rows, float* shared, float2* ml) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warps = blockDim.x / kWarp;
  const int g = lane / 4, t = lane % 4;
  float* mine = shared + warp * kRows * kDim;
#pragma unroll
  for (int i = 0; i < PageShape<kDim>::kValueTiles; ++i) {
    *reinterpret_cast<float2*>(mine + g * kDim + i * 8 + 2 * t) = {rows.out[i][0], rows.out[i][1]};
    if (p.group > 8)
      *reinterpret_cast<float2*>(mine + (g + 8) * kDim + i * 8 + 2 * t) = {rows.out[i][2], rows.out[i][3]};
  }
  if (t == 0) {
    ml[warp * kRows + g] = {rows.max[0], rows.sum[0]};
    ml[warp * kRows + g + 8] = {rows.max[1], rows.sum[1]};
  }
  __syncthreads();
  const bool whole = begin == 0 && end == item.n_pages;
  const int slot = blockIdx.x * 2 + (begin > 0 ? 0 : 1);
  for (int row = warp; row < p.group; row += n_warps) {
#pragma unroll
    for (int first = 0; first < kDim; first += kColumns) {
      const Merged m = merge(n_warps, lane, has_columns(kDim, first, lane), [&](int i) {
        return SharedRow{ml[i * kRows + row],
                         reinterpret_cast<const float4*>(shared + (i * kRows + row) * kDim + first)};
      });
      if (whole) {
        write_row<kDim>(p, item, row, first, lane, m);
      } else {
        float* to = p.partial_out + (static_cast<std::int64_t>(slot) * kRows + row) * kDim + first;
        if (has_columns(kDim, first, lane)) reinterpret_cast<float4*>(to)[lane] = m.out;
        if (lane == 0) p.partial_ml[slot * kRows + row] = {m.max, m.sum};
      }
    }
  }
  if (whole) {
    __syncthreads();
    return;
  }

  // Blocks [first, last] have stretches of this item; each has at least one page.
  const int item_begin = flat_begin - begin;
  const int first = split.block_of(static_cast<unsigned>(item_begin)),
            last = split.block_of(static_cast<unsigned>(item_begin + item.n_pages - 1));
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(&p.arrived[item_index], 1) == static_cast<std::uint32_t>(last - first);
    if (is_last) p.arrived[item_index] = 0;
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
          return PartialRow{__ldcg(&p.partial_ml[from * kRows + row]), reinterpret_cast<const float4*>(row_of)};
        });
        write_row<kDim>(p, item, row, column, lane, m);
      }
    }
  }
  __syncthreads();
}

template <typename T, int kDim, TableKind kKind>
__global__ void decode_kernel(Args p) {
  constexpr bool kHoles = kKind == TableKind::kHoles, kArriving = kKind == TableKind::kArriving;
  extern __shared__ __align__(128) std::uint8_t ring[];
  __shared__ int first[kMostItems / 4 + 1];
  __shared__ float2 ml[kMostWarps * kRows];
  let_next_start();
  const int n_items = p.a.n * p.tables.n_kv_heads, n_warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp;
  const bool waits = p.a.tables_late;
  if (waits && !p.a.lengths_early) wait_for_previous();
  const Pages pages = count_pages<kHoles>(p, n_items, first);
  if (waits && p.a.lengths_early && !kArriving) wait_for_previous();
  bool waited = waits;  // kArriving: for an item's list in place of that

  if (static_cast<int>(blockIdx.x) < pages.used) {
    const Split split(static_cast<unsigned>(pages.all), static_cast<unsigned>(pages.used));
    int at = split.begin(blockIdx.x);
    const int stop = split.begin(blockIdx.x + 1);
    int low = 0, high = n_items - 1;  // the item of page `at`
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first[middle] <= at) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    for (int i = low; at < stop; at = first[++i]) {
      const Item item = item_at<kHoles>(p, i);
      const int begin = at - first[i], end = min(item.n_pages, stop - first[i]);
      if (begin >= end) continue;  // an item without pages, or those that stand for nothing
      const std::int32_t* table = p.tables.blocks + table_at(p.tables, p.layer, p.a.slots[item.row], item.kv_head);
      if constexpr (kArriving) {
        if (threadIdx.x == 0) await_flag(p.a.arriving.listed_for + flag_index(p, item), p.a.arriving.tickets[item.row]);
        __syncthreads();
      }
      RunningRows<kDim> rows;
      Stretch<T, kDim, kKind>{p,     item, table, shared_address(ring) + warp * p.n_stages * PageShape<kDim>::kBytes,
                              begin, end,  waited}
          .run(rows, n_warps);
      __syncthreads();  // the ring becomes room for the merge
      finish_stretch<kDim>(p, item, i, begin, end, at, split, rows, reinterpret_cast<float*>(ring), ml);
    }
  }
  if (kArriving || !waited) wait_for_previous();
  for (int i = blockIdx.x; i < n_items; i += gridDim.x) {
    const Item item = item_at<kHoles>(p, i);
    if (item.n_pages > 0) continue;
    for (int row = warp; row < p.group; row += n_warps)
      for (int column = 0; column < kDim; column += kColumns)
        write_row<kDim>(p, item, row, column, threadIdx.x % kWarp, {-INFINITY, 0, {0, 0, 0, 0}});
  }
}

struct Device {
  int blocks = 0, shared = 0;
};
const Device& this_device() {
  static const Device d = {.blocks = device_attribute(cudaDevAttrMultiProcessorCount),
                           .shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
  return d;
}

struct Shape {
  int n_warps, n_stages;
  std::size_t shared_bytes;
};

// Two pages a warp, one under way while one is read: 128 KiB where there is as much, which leaves room on the
// multiprocessor for a block of the product before or after. Three pages a warp read no faster.
template <int kDim>
Shape shape_for(int shared) {
  constexpr int kPage = PageShape<kDim>::kBytes, kStatic = 8 << 10;
  const int pages = (shared - kStatic) / kPage;
  const int n_warps = pages >= 16 ? 8 : pages >= 8 ? 4 : pages >= 6 ? 3 : 2;
  const int n_stages = 2;
  return {n_warps, n_stages, static_cast<std::size_t>(n_warps) * n_stages * kPage};
}

template <typename T, int kDim, TableKind kKind>
void run(const Args& args, const CudaContext& context) {
  static const Shape shape = [] {
    const Shape s = shape_for<kDim>(this_device().shared);
    cuda_check(cudaFuncSetAttribute(decode_kernel<T, kDim, kKind>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(s.shared_bytes)),
               "decode attention's shared memory");
    return s;
  }();
  Args a = args;
  a.n_stages = shape.n_stages;
  launch(context, "attend_decode", decode_kernel<T, kDim, kKind>, dim3(static_cast<unsigned>(this_device().blocks)),
         dim3(static_cast<unsigned>(shape.n_warps * kWarp)), shape.shared_bytes, a);
}

}  // namespace

std::size_t decode_attention_scratch_bytes(std::int32_t n, std::int32_t n_kv_heads, std::int32_t head_dim) {
  const std::size_t parts = std::size_t{kMostBlocks} * 2 * kRows;
  return parts * (static_cast<std::size_t>(head_dim) * sizeof(float) + sizeof(float2)) +
         static_cast<std::size_t>(n) * static_cast<std::size_t>(n_kv_heads) * sizeof(std::uint32_t);
}

void attend_decode_cuda(const DecodeAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                        const CudaContext& context) {
  if (a.n == 0) return;
  const int group = a.n_heads / tables.n_kv_heads;
  // A launch takes so many items; more rows go in several.
  const int most_rows = std::max(1, kMostItems / 4 / tables.n_kv_heads);
  for (int first = 0; first < a.n; first += most_rows) {
    Args args{};
    args.a = a;
    args.a.n = std::min(most_rows, a.n - first);
    const std::int64_t heads = static_cast<std::int64_t>(first) * a.n_heads;
    args.a.q = static_cast<const __nv_bfloat16*>(a.q) + heads * tables.head_dim;
    args.a.out = static_cast<__nv_bfloat16*>(a.out) + heads * tables.head_dim;
    args.a.slots += first;
    args.a.lengths += static_cast<std::int64_t>(first) * a.length_stride;
    if (a.arriving.tickets != nullptr) args.a.arriving.tickets += first;
    if (a.begins != nullptr) args.a.begins += first;
    if (a.lse != nullptr) args.a.lse += heads;
    if (a.log_weights != nullptr) args.a.log_weights += first * tables.n_kv_heads * a.log_weight_stride;
    args.tables = tables;
    args.layer = layer;
    args.group = group;
    args.partial_out = reinterpret_cast<float*>(a.scratch);
    const std::int64_t parts = std::int64_t{kMostBlocks} * 2 * kRows;
    args.partial_ml = reinterpret_cast<float2*>(args.partial_out + parts * tables.head_dim);
    args.arrived = reinterpret_cast<std::uint32_t*>(args.partial_ml + parts) + first * tables.n_kv_heads;
    with_head_dim(tables.head_dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
      const auto run_kind = [&]<TableKind kKind>(std::integral_constant<TableKind, kKind>) {
        tables.f16 ? run<__half, kDim, kKind>(args, context) : run<__nv_bfloat16, kDim, kKind>(args, context);
      };
      if (tables.masks != nullptr) {
        run_kind(std::integral_constant<TableKind, TableKind::kHoles>());
      } else if (a.arriving.tickets != nullptr) {
        run_kind(std::integral_constant<TableKind, TableKind::kArriving>());
      } else {
        run_kind(std::integral_constant<TableKind, TableKind::kWhole>());
      }
    });
  }
}

}  // namespace mneme
