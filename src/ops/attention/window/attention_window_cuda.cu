// Windowed attention of prompt rows, structured as attention_prefill_cuda.cu: a thread block has up to 128 query rows
// of one head, 16 per warp, and iterates over pages, two at a time, with the next two in flight. Here the pages are a
// list: sinks, selected units, the middle, the local part. The queries change once, where the local part starts.
#include <algorithm>

#include "src/ops/attention/attention_page.cuh"
#include "src/ops/attention/head_dims_cuda.h"
#include "src/ops/attention/window/attention_window_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kPrefetchPages = 2, kStages = 2;
static_assert(kWindowBlockRows == kWarps * 16);

struct WindowArgs {
  WindowAttentionCuda a;
  std::int64_t remote_entry, local_entry;  // of the layer's first tables of the sequence
  int group;
};

// Kind of a listed page, and which of its tokens any row of the thread block attends.
enum Kind : int { kSink, kSelected, kMiddle, kLocal };
struct Listed {
  int kind, page, begin, end;  // token positions
};

struct Pages {
  int sinks, units, middle, local;  // pages of each kind
  int first_middle, first_local;    // pages
  int local_from, middle_end, local_end;
  __device__ __forceinline__ int all() const { return sinks + units + middle + local; }
};

__device__ __forceinline__ Pages pages_of(const WindowArgs& p, const WindowBlock& b) {
  Pages n{};
  const int first = p.a.first + b.row;
  n.local_end = first + b.n_rows;
  n.local_from = b.slides ? max(b.base, first - p.a.recent + 1) : b.base;
  n.first_local = n.local_from / kKvPageTokens;
  n.local = (n.local_end + kKvPageTokens - 1) / kKvPageTokens - n.first_local;
  n.sinks = b.sinks ? (p.a.sink + kKvPageTokens - 1) / kKvPageTokens : 0;
  n.units = p.a.n_units != nullptr && !p.a.dense ? p.a.n_units[b.window] : 0;
  n.first_middle = b.base / kKvPageTokens;
  n.middle_end = n.local_end - p.a.recent;
  n.middle =
      b.middle && n.middle_end > b.base ? (n.middle_end + kKvPageTokens - 1) / kKvPageTokens - n.first_middle : 0;
  return n;
}

__device__ __forceinline__ Listed listed_at(const WindowArgs& p, const WindowBlock& b, const Pages& n, int i) {
  if (i < n.sinks) return {kSink, i, 0, p.a.sink};
  i -= n.sinks;
  if (i < n.units) {
    const int unit = p.a.units[b.window * p.a.unit_stride + i];
    return {kSelected, unit, unit * kKvPageTokens, (unit + 1) * kKvPageTokens};
  }
  i -= n.units;
  if (i < n.middle) return {kMiddle, n.first_middle + i, b.base, n.middle_end};
  return {kLocal, n.first_local + i - n.middle, n.local_from, n.local_end};
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) window_kernel(WindowArgs p) {
  extern __shared__ __align__(128) std::uint8_t ring[];
  constexpr int kPageBytes = PageShape<kDim>::kBytes;
  grid_dependency_wait();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int head = blockIdx.x;
  WindowBlock block = p.a.blocks[gridDim.y - 1 - blockIdx.y];  // the last rows attend most where rows attend everything
  if (p.a.dense) block.base = block.sinks = 0, block.middle = block.slides = 1;
  const Pages n = pages_of(p, block);
  const int n_pages = n.all(), n_remote = n_pages - n.local;
  const std::int32_t* remote =
      p.a.remote.blocks + p.remote_entry + static_cast<std::int64_t>(head / p.group) * p.a.remote.max_pages;
  const std::int32_t* local =
      p.a.local.blocks + p.local_entry + static_cast<std::int64_t>(head / p.group) * p.a.local.max_pages;

  // Page addresses are loaded one iteration before the page is fetched: two dependent loads.
  Listed prefetch[kPrefetchPages];
  std::int32_t entry[kPrefetchPages];
  const auto look = [&](int at) {
#pragma unroll
    for (int i = 0; i < kPrefetchPages; ++i) {
      if (at + i >= n_pages) continue;
      prefetch[i] = listed_at(p, block, n, at + i);
      const int number = prefetch[i].page;
      entry[i] =
          prefetch[i].kind != kLocal ? remote[number] : local[p.a.local_ring > 0 ? number % p.a.local_ring : number];
    }
  };
  const auto fetch = [&](int at, int stage) {
#pragma unroll
    for (int i = 0; i < kPrefetchPages; ++i) {
      if (at + i >= n_pages) continue;
      const std::byte* base = prefetch[i].kind == kLocal ? p.a.local.base : p.a.remote.base;
      const int first = prefetch[i].page * kKvPageTokens;
      fetch_page<kDim, kThreads, PageReads::kByManyBlocks>(
          shared_address(ring) + (stage * kPrefetchPages + i) * kPageBytes,
          base + static_cast<std::int64_t>(entry[i]) * kPageBytes, prefetch[i].begin - first, prefetch[i].end - first,
          threadIdx.x);
    }
    copy_async_commit();
  };

  const int rows[2] = {warp * 16 + g, warp * 16 + g + 8};
  const int warp_first = p.a.first + block.row + warp * 16;  // positions
  std::uint32_t q[PageShape<kDim>::kKeySteps][4];
  const auto load = [&](const void* from) {
    const auto row_of = [&](int row) -> const __nv_bfloat16* {
      if (row >= block.n_rows) return nullptr;
      return static_cast<const __nv_bfloat16*>(from) +
             (static_cast<std::int64_t>(block.row + row) * p.a.n_heads + head) * kDim;
    };
    load_queries<T, kDim>(q, row_of(rows[0]), row_of(rows[1]));
  };
  look(0);
  fetch(0, 0);
  look(kPrefetchPages);
  load(n_remote > 0 ? p.a.remote_q : p.a.q);
  bool is_remote = n_remote > 0;
  RunningSoftmax<kDim> running;
  running.clear();
  const float factor = p.a.scale * kLog2e;

  int stage = 0;
  for (int page = 0; page < n_pages; page += kPrefetchPages, stage ^= 1) {
    fetch(page + kPrefetchPages, stage ^ 1);
    look(page + 2 * kPrefetchPages);
    copy_async_wait<1>();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kPrefetchPages && page + i < n_pages; ++i) {
      if (is_remote && page + i >= n_remote) {
        load(p.a.q);
        is_remote = false;
      }
      const Listed l = listed_at(p, block, n, page + i);
      // Range of the page that this warp's first and last row attend.
      const int at = l.page * kKvPageTokens, reach = p.a.recent;
      const bool slides = l.kind == kLocal && block.slides;
      const int begin = slides ? warp_first + 1 - reach : 0;
      const int end = l.kind == kLocal    ? warp_first + 16
                      : l.kind == kMiddle ? warp_first + 16 - reach
                                          : at + kKvPageTokens;
      if (at >= end || at + kKvPageTokens <= begin) continue;
      const std::uint32_t address = shared_address(ring) + (stage * kPrefetchPages + i) * kPageBytes;
      float s[kTokenTiles][4];
      score_page<T, kDim>(s, q, address);
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int token = at + j * 8 + 2 * t + k % 2, position = p.a.first + block.row + rows[k / 2];
          bool seen = token >= l.begin && token < l.end;
          if (l.kind == kLocal) seen = seen && token <= position && (!block.slides || token > position - reach);
          if (l.kind == kMiddle) seen = seen && token <= position - reach;
          s[j][k] = seen ? s[j][k] * factor : -INFINITY;
        }
      running.template take<T>(s, address);
    }
    __syncthreads();
  }
  running.finish();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (rows[r] >= block.n_rows) continue;
    const float inverse = running.sum[r] == 0 ? 0.0f : 1.0f / running.sum[r];
    auto* out = static_cast<__nv_bfloat16*>(p.a.out) +
                (static_cast<std::int64_t>(block.row + rows[r]) * p.a.n_heads + head) * kDim;
#pragma unroll
    for (int i = 0; i < PageShape<kDim>::kValueTiles; ++i)
      *reinterpret_cast<std::uint32_t*>(out + i * 8 + 2 * t) =
          pack<__nv_bfloat16>(running.out[i][2 * r] * inverse, running.out[i][2 * r + 1] * inverse);
  }
}

template <typename T, int kDim>
void run(const WindowArgs& args, const CudaContext& context) {
  constexpr int kShared = kStages * kPrefetchPages * PageShape<kDim>::kBytes;
  static const bool ready = [] {
    cuda_check(cudaFuncSetAttribute(window_kernel<T, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
               "windowed attention's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  launch(context, "attend_windows", window_kernel<T, kDim>,
         dim3(static_cast<unsigned>(args.a.n_heads), static_cast<unsigned>(args.a.n_blocks)), dim3(kThreads), kShared,
         args);
}

std::int64_t first_entry(const KvTables& tables, const SlotOfTables& at) {
  return at.slot * tables.sequence_stride + static_cast<std::int64_t>(at.layer) * tables.n_kv_heads * tables.max_pages;
}

}  // namespace

void attend_windows_cuda(const WindowAttentionCuda& a, const CudaContext& context) {
  if (a.n_blocks == 0) return;
  const WindowArgs args{a, first_entry(a.remote, a.remote_at), first_entry(a.local, a.local_at),
                        a.n_heads / a.remote.n_kv_heads};
  with_head_dim(a.remote.head_dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
    a.remote.f16 ? run<__half, kDim>(args, context) : run<__nv_bfloat16, kDim>(args, context);
  });
}

}  // namespace mneme
