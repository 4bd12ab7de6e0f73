// Prefill attention over pages. A thread block has 128 (row, query head) pairs of one KV head, 16 per warp, and iterates
// over the pages that they attend, two at a time, with the next two in flight. Few tiles are split over the context:
// 32 rows of an 8B Llama after 50,000 tokens are 8 tiles, which would leave 124 of 132 SMs idle.
// On Hopper a library's kernel is about twice as fast where it fills the device (attention_flashinfer.cu); this one runs
// on every device and reads pages in place.
#include <algorithm>

#include "src/kv/kv_codes.cuh"
#include "src/ops/attention/attention_cuda.h"
#include "src/ops/attention/attention_page.cuh"
#include "src/ops/attention/head_dims_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTileItems = kWarps * 16;
constexpr int kPrefetchPages = 2, kStages = 2;
constexpr int kMaxWaves = 3;         // of thread blocks with a part each, which bounds the scratch memory
constexpr int kLeastSplitPages = 8;  // shorter splits cost more to merge than they gain

struct PrefillArgs {
  PrefillAttentionCuda a;
  KvTables tables;
  int layer, group;
  // Results of each split, [splits][n_rows, heads]: normalised, [D] f32, and log2-sum-exp2. Unused with one split.
  float *parts, *part_lse;
};

// The pages of a tile that a thread block attends.
struct Pages {
  int begin, end;
};
__device__ __forceinline__ Pages split_of(int begin, int end) {
  const int n = static_cast<int>(gridDim.z);
  const int each = (end - begin + n * kPrefetchPages - 1) / (n * kPrefetchPages) * kPrefetchPages;
  const int from = min(begin + static_cast<int>(blockIdx.z) * each, end);
  return {from, min(from + each, end)};
}

template <int kDim>
__device__ __forceinline__ void store_rows(const PrefillArgs& p, const RunningSoftmax<kDim>& running,
                                           const int (&items)[2], int kv_head) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (items[r] >= p.a.n_rows * p.group) continue;
    const float inverse = running.sum[r] == 0 ? 0.0f : 1.0f / running.sum[r];
    const float lse = running.sum[r] == 0 ? -INFINITY : running.max[r] + log2f(running.sum[r]);
    const std::int64_t heads = p.a.n_heads;
    std::int64_t at = items[r] / p.group * heads + kv_head * p.group + items[r] % p.group;
    if (gridDim.z > 1) {
      at += blockIdx.z * (p.a.n_rows * heads);
#pragma unroll
      for (int i = 0; i < PageShape<kDim>::kValueTiles; ++i)
        *reinterpret_cast<float2*>(p.parts + at * kDim + i * 8 + 2 * t) = {running.out[i][2 * r] * inverse,
                                                                           running.out[i][2 * r + 1] * inverse};
      if (t == 0) p.part_lse[at] = lse;
      continue;
    }
    auto* out = static_cast<__nv_bfloat16*>(p.a.out) + at * kDim;
#pragma unroll
    for (int i = 0; i < PageShape<kDim>::kValueTiles; ++i)
      *reinterpret_cast<std::uint32_t*>(out + i * 8 + 2 * t) =
          pack<__nv_bfloat16>(running.out[i][2 * r] * inverse, running.out[i][2 * r + 1] * inverse);
    if (t == 0 && p.a.lse != nullptr) p.a.lse[at] = lse / kLog2e;
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) prefill_kernel(PrefillArgs p) {
  extern __shared__ __align__(128) std::uint8_t ring[];
  constexpr int kPageBytes = PageShape<kDim>::kBytes;
  grid_dependency_wait();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int kv_head = blockIdx.x, n_items = p.a.n_rows * p.group;
  // The last rows attend the most tokens: they start first.
  const int tile = (gridDim.y - 1 - blockIdx.y) * kTileItems, tile_end = min(tile + kTileItems, n_items);
  const std::int64_t table_entry = table_at(p.tables, p.layer, p.a.slot, kv_head);
  const std::int32_t* table = p.tables.blocks + table_entry;
  const auto mask_of = [&](int page) { return p.tables.masks == nullptr ? ~0u : p.tables.masks[table_entry + page]; };
  const int first = p.a.first - shift_of(p.tables, p.layer, p.a.slot, kv_head);  // table index of row 0
  const int tile_first = first + tile / p.group, last_token = first + (tile_end - 1) / p.group;
  const int from = p.a.window > 0 ? max(0, tile_first + 1 - p.a.window) : 0;
  const Pages pages = split_of(from / kKvPageTokens, last_token / kKvPageTokens + 1);

  const auto fetch = [&](int page, int stage) {
#pragma unroll
    for (int i = 0; i < kPrefetchPages; ++i)
      if (page + i < pages.end)
        fetch_page<kDim, kThreads, PageReads::kByManyBlocks>(
            shared_address(ring) + (stage * kPrefetchPages + i) * kPageBytes,
            p.tables.base + static_cast<std::int64_t>(table[page + i]) * kPageBytes, 0,
            last_token + 1 - (page + i) * kKvPageTokens, threadIdx.x, mask_of(page + i));
    copy_async_commit();
  };

  const int warp_item = tile + warp * 16, items[2] = {warp_item + g, warp_item + g + 8};
  const int positions[2] = {first + items[0] / p.group, first + items[1] / p.group};
  std::uint32_t q[PageShape<kDim>::kKeySteps][4];
  const auto query_of = [&](int item) -> const __nv_bfloat16* {
    if (item >= n_items) return nullptr;
    return static_cast<const __nv_bfloat16*>(p.a.q) +
           (static_cast<std::int64_t>(item / p.group) * p.a.n_heads + kv_head * p.group + item % p.group) * kDim;
  };
  fetch(pages.begin, 0);
  load_queries<T, kDim>(q, query_of(items[0]), query_of(items[1]));
  RunningSoftmax<kDim> running;
  running.clear();
  const float factor = p.a.scale * kLog2e;
  const int warp_first = first + warp_item / p.group;
  const int warp_last = warp_item < n_items ? first + min(warp_item + 15, n_items - 1) / p.group : -1;

  int stage = 0;
  for (int page = pages.begin; page < pages.end; page += kPrefetchPages, stage ^= 1) {
    fetch(page + kPrefetchPages, stage ^ 1);
    copy_async_wait<1>();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kPrefetchPages; ++i) {
      const int at = (page + i) * kKvPageTokens;
      if (page + i >= pages.end || at > warp_last) break;  // none of this warp's rows attends it
      const std::uint32_t address = shared_address(ring) + (stage * kPrefetchPages + i) * kPageBytes;
      float s[kTokenTiles][4];
      score_page<T, kDim>(s, q, address);
      const std::uint32_t there = mask_of(page + i);
      const bool inside =
          at + kKvPageTokens - 1 <= warp_first && (p.a.window == 0 || at > warp_last - p.a.window) && there == ~0u;
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int token = at + j * 8 + 2 * t + k % 2, position = positions[k / 2];
          const bool seen = inside || (token <= position && (p.a.window == 0 || token > position - p.a.window) &&
                                       (there >> (token - at) & 1) != 0);
          s[j][k] = seen ? s[j][k] * factor : -INFINITY;
        }
      running.template take<T>(s, address);
    }
    __syncthreads();
  }
  running.finish();
  store_rows<kDim>(p, running, items, kv_head);
}

// A warp merges the parts of one (row, query head).
__global__ void __launch_bounds__(kThreads) merge_kernel(PrefillArgs p, int n_splits) {
  launch_dependents();
  grid_dependency_wait();
  const int lane = threadIdx.x % kWarp, dim = p.tables.head_dim;
  const std::int64_t n = static_cast<std::int64_t>(p.a.n_rows) * p.a.n_heads;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (at >= n) return;
  float most = -INFINITY, sum = 0;
  for (int i = 0; i < n_splits; ++i) most = fmaxf(most, __ldcg(p.part_lse + i * n + at));
  const float base = most == -INFINITY ? 0.0f : most;
  for (int i = 0; i < n_splits; ++i) sum += exp2f(__ldcg(p.part_lse + i * n + at) - base);
  auto* out = static_cast<__nv_bfloat16*>(p.a.out) + at * dim;
  for (int d = 2 * lane; d < dim; d += 2 * kWarp) {
    float2 mean{};
    for (int i = 0; i < n_splits; ++i) {
      const float weight = exp2f(__ldcg(p.part_lse + i * n + at) - base);
      if (weight == 0) continue;
      const float2 part = __ldcg(reinterpret_cast<const float2*>(p.parts + (i * n + at) * dim + d));
      mean.x += part.x * weight, mean.y += part.y * weight;
    }
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    *reinterpret_cast<std::uint32_t*>(out + d) = pack<__nv_bfloat16>(mean.x * inverse, mean.y * inverse);
  }
  if (lane == 0 && p.a.lse != nullptr) p.a.lse[at] = sum == 0 ? -INFINITY : (base + log2f(sum)) / kLog2e;
}

// KV splits of a tile: of those that fit into the scratch memory, the fewest whose waves of thread blocks take within
// 5 % of the shortest time.
int splits_of(int tiles, int pages) {
  const int most = std::min(kMaxWaves * sm_count() / tiles, pages / kLeastSplitPages);
  const auto cost = [&](int splits) {
    return static_cast<double>((tiles * splits + sm_count() - 1) / sm_count()) / splits;
  };
  int best = 1;
  for (int splits = 2; splits <= most; ++splits)
    if (cost(splits) < 0.95 * cost(best)) best = splits;
  return best;
}

template <typename T, int kDim>
void run(PrefillArgs args, const CudaContext& context) {
  constexpr int kShared = kStages * kPrefetchPages * PageShape<kDim>::kBytes;
  static const bool ready = [] {
    cuda_check(cudaFuncSetAttribute(prefill_kernel<T, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
               "prefill attention's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  const PrefillAttentionCuda& a = args.a;
  const int heads = args.tables.n_kv_heads, tiles = (a.n_rows * args.group + kTileItems - 1) / kTileItems;
  const int tokens = a.window > 0 ? std::min(a.first + a.n_rows, a.window + kTileItems) : a.first + a.n_rows;
  const int splits = a.scratch == nullptr ? 1 : splits_of(heads * tiles, tokens / kKvPageTokens);
  const std::int64_t n = std::int64_t{a.n_rows} * a.n_heads;
  args.parts = reinterpret_cast<float*>(a.scratch);
  args.part_lse = args.parts + splits * n * kDim;
  const dim3 grid(static_cast<unsigned>(heads), static_cast<unsigned>(tiles), static_cast<unsigned>(splits));
  launch(context, "attend_prefill", prefill_kernel<T, kDim>, grid, dim3(kThreads), kShared, args);
  if (splits > 1)
    launch(context, "merge_prefill", merge_kernel, dim3(static_cast<unsigned>((n + kWarps - 1) / kWarps)),
           dim3(kThreads), 0, args, splits);
}

// One thread block per page: [KV heads, tokens_a_head, 2 D], 8 bits as bf16.
template <typename T>
__global__ void gather_kernel(KvTables tables, int layer, int slot, int n_tokens, std::int64_t tokens_a_head,
                              uint4* out) {
  grid_dependency_wait();
  const int page = blockIdx.x, head = blockIdx.y, d = tables.head_dim, row_pieces = d / 4;
  n_tokens -= shift_of(tables, layer, slot, head);
  if (page * kKvPageTokens >= n_tokens) return;
  const std::int32_t block = tables.blocks[table_at(tables, layer, slot, head) + page];
  const std::byte* from = tables.base + block * (token_bytes(tables) * kKvPageTokens);
  uint4* to = out + (head * tokens_a_head + page * kKvPageTokens) * row_pieces;
  const int n = min(kKvPageTokens, n_tokens - page * kKvPageTokens) * row_pieces;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const int token = i / row_pieces, piece = i % row_pieces, of_part = row_pieces / 2;
    to[i] = KvRow<T>(from + token * token_bytes(tables), d, tables.codes, piece / of_part).eight(piece % of_part * 8);
  }
}

}  // namespace

std::size_t prefill_attention_scratch_bytes(std::int32_t head_dim) {
  return static_cast<std::size_t>(kMaxWaves * sm_count() * kTileItems) * (head_dim + 1) * sizeof(float);
}

void attend_prefill_cuda(const PrefillAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                         const CudaContext& context) {
  if (a.n_rows == 0) return;
  const PrefillArgs args{a, tables, layer, a.n_heads / tables.n_kv_heads, nullptr, nullptr};
  with_head_dim(tables.head_dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
    tables.f16 ? run<__half, kDim>(args, context) : run<__nv_bfloat16, kDim>(args, context);
  });
}

void gather_kv_cuda(const KvTables& tables, std::int32_t layer, std::int32_t slot, std::int32_t n_tokens,
                    std::int64_t tokens_a_head, void* out, const CudaContext& context) {
  const dim3 grid(static_cast<unsigned>((n_tokens + kKvPageTokens - 1) / kKvPageTokens),
                  static_cast<unsigned>(tables.n_kv_heads));
  const auto kernel = tables.codes == KvCodes::kNone ? gather_kernel<__nv_bfloat16> : gather_kernel<EightBit>;
  launch(context, "gather_kv", kernel, grid, dim3(256), 0, tables, layer, slot, n_tokens, tokens_a_head,
         static_cast<uint4*>(out));
}

}  // namespace mneme
