// As attention_prefill_cuda.cu: a block has up to 128 query rows of one head, 16 a warp, and goes over pages, two at a
// time, while the next two come. The pages are a list here: sinks, selected units, the middle, and what is near; the
// queries change once, where the near ones begin.
#include <algorithm>

#include "src/kernels/attention_page.cuh"
#include "src/kernels/attention_window_cuda.h"
#include "src/kernels/head_dims_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kPagesAhead = 2, kStages = 2;
static_assert(kWindowBlockRows == kWarps * 16);

struct Args {
  WindowAttentionCuda a;
  std::int64_t far_entry, near_entry;  // of the layer's first tables of the sequence
  int group;
};

// What a page of a block's list is, and which of its tokens any row of the block sees.
enum Kind : int { kSink, kSelected, kMiddle, kNear };
struct Listed {
  int kind, page, begin, end;  // tokens, by position
};

struct Pages {
  int sinks, units, middle, near;  // how many of each
  int first_middle, first_near;    // pages
  int near_from, middle_end, near_end;
  __device__ __forceinline__ int all() const { return sinks + units + middle + near; }
};

__device__ __forceinline__ Pages pages_of(const Args& p, const WindowBlock& b) {
  Pages n{};
  const int first = p.a.first + b.row;
  n.near_end = first + b.n_rows;
  n.near_from = b.slides ? max(b.base, first - p.a.recent + 1) : b.base;
  n.first_near = n.near_from / kKvPageTokens;
  n.near = (n.near_end + kKvPageTokens - 1) / kKvPageTokens - n.first_near;
  n.sinks = b.sinks ? (p.a.sink + kKvPageTokens - 1) / kKvPageTokens : 0;
  n.units = p.a.n_units != nullptr && !p.a.dense ? p.a.n_units[b.window] : 0;
  n.first_middle = b.base / kKvPageTokens;
  n.middle_end = n.near_end - p.a.recent;
  n.middle =
      b.middle && n.middle_end > b.base ? (n.middle_end + kKvPageTokens - 1) / kKvPageTokens - n.first_middle : 0;
  return n;
}

__device__ __forceinline__ Listed listed_at(const Args& p, const WindowBlock& b, const Pages& n, int i) {
  if (i < n.sinks) return {kSink, i, 0, p.a.sink};
  i -= n.sinks;
  if (i < n.units) {
    const int unit = p.a.units[b.window * p.a.unit_stride + i];
    return {kSelected, unit, unit * kKvPageTokens, (unit + 1) * kKvPageTokens};
  }
  i -= n.units;
  if (i < n.middle) return {kMiddle, n.first_middle + i, b.base, n.middle_end};
  return {kNear, n.first_near + i - n.middle, n.near_from, n.near_end};
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) window_kernel(Args p) {
  extern __shared__ __align__(128) std::uint8_t ring[];
  constexpr int kPageBytes = PageShape<kDim>::kBytes;
  wait_for_previous();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int head = blockIdx.x;
  WindowBlock block = p.a.blocks[gridDim.y - 1 - blockIdx.y];  // the last ones see most, where rows attend everything
  if (p.a.dense) block.base = block.sinks = 0, block.middle = block.slides = 1;
  const Pages n = pages_of(p, block);
  const int n_pages = n.all(), n_far = n_pages - n.near;
  const std::int32_t* far =
      p.a.far.blocks + p.far_entry + static_cast<std::int64_t>(head / p.group) * p.a.far.max_pages;
  const std::int32_t* near =
      p.a.near.blocks + p.near_entry + static_cast<std::int64_t>(head / p.group) * p.a.near.max_pages;

  // Where a page lies is read a turn before it is fetched: two loads, one after the other.
  Listed ahead[kPagesAhead];
  std::int32_t entry[kPagesAhead];
  const auto look = [&](int at) {
#pragma unroll
    for (int i = 0; i < kPagesAhead; ++i) {
      if (at + i >= n_pages) continue;
      ahead[i] = listed_at(p, block, n, at + i);
      const int number = ahead[i].page;
      entry[i] = ahead[i].kind != kNear ? far[number] : near[p.a.near_ring > 0 ? number % p.a.near_ring : number];
    }
  };
  const auto fetch = [&](int at, int stage) {
#pragma unroll
    for (int i = 0; i < kPagesAhead; ++i) {
      if (at + i >= n_pages) continue;
      const std::byte* base = ahead[i].kind == kNear ? p.a.near.base : p.a.far.base;
      const int first = ahead[i].page * kKvPageTokens;
      fetch_page<kDim, kThreads>(shared_address(ring) + (stage * kPagesAhead + i) * kPageBytes,
                                 base + static_cast<std::int64_t>(entry[i]) * kPageBytes, ahead[i].begin - first,
                                 ahead[i].end - first, threadIdx.x);
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
  look(kPagesAhead);
  load(n_far > 0 ? p.a.far_q : p.a.q);
  bool is_far = n_far > 0;
  RunningRows<kDim> running;
  running.clear();
  const float factor = p.a.scale * kLog2e;

  int stage = 0;
  for (int page = 0; page < n_pages; page += kPagesAhead, stage ^= 1) {
    fetch(page + kPagesAhead, stage ^ 1);
    look(page + 2 * kPagesAhead);
    copy_async_wait<1>();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kPagesAhead && page + i < n_pages; ++i) {
      if (is_far && page + i >= n_far) {
        load(p.a.q);
        is_far = false;
      }
      const Listed l = listed_at(p, block, n, page + i);
      // What the first and the last row of this warp see of it.
      const int at = l.page * kKvPageTokens, reach = p.a.recent;
      const bool slides = l.kind == kNear && block.slides;
      const int begin = slides ? warp_first + 1 - reach : 0;
      const int end = l.kind == kNear     ? warp_first + 16
                      : l.kind == kMiddle ? warp_first + 16 - reach
                                          : at + kKvPageTokens;
      if (at >= end || at + kKvPageTokens <= begin) continue;
      const std::uint32_t address = shared_address(ring) + (stage * kPagesAhead + i) * kPageBytes;
      float s[kTokenTiles][4];
      score_page<T, kDim>(s, q, address);
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int token = at + j * 8 + 2 * t + k % 2, position = p.a.first + block.row + rows[k / 2];
          bool seen = token >= l.begin && token < l.end;
          if (l.kind == kNear) seen = seen && token <= position && (!block.slides || token > position - reach);
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
void run(const Args& args, const CudaContext& context) {
  constexpr int kShared = kStages * kPagesAhead * PageShape<kDim>::kBytes;
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

std::int64_t first_entry(const KvTables& tables, std::int32_t layer, std::int32_t slot) {
  return slot * tables.sequence_stride + static_cast<std::int64_t>(layer) * tables.n_kv_heads * tables.max_pages;
}

}  // namespace

void attend_windows_cuda(const WindowAttentionCuda& a, const CudaContext& context) {
  if (a.n_blocks == 0) return;
  const Args args{a, first_entry(a.far, a.far_layer, a.far_slot), first_entry(a.near, a.near_layer, a.near_slot),
                  a.n_heads / a.far.n_kv_heads};
  with_head_dim(a.far.head_dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
    a.far.f16 ? run<__half, kDim>(args, context) : run<__nv_bfloat16, kDim>(args, context);
  });
}

}  // namespace mneme
