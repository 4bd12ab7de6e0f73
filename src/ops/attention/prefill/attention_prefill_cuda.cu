// Prefill attention over pages. A thread block has 128 query rows of one head, 16 per warp, and iterates over the pages
// that they attend, two at a time, with the next two in flight. On Hopper a library's kernel is about twice as fast
// (attention_flashinfer.cu); this one runs on every device and reads pages in place.
#include <algorithm>

#include "src/kv/kv_codes.cuh"
#include "src/ops/attention/attention_cuda.h"
#include "src/ops/attention/attention_page.cuh"
#include "src/ops/attention/head_dims_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kBlockRows = kWarps * 16;
constexpr int kPrefetchPages = 2, kStages = 2;

struct Args {
  PrefillAttentionCuda a;
  KvTables tables;
  int layer, group;
};

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) prefill_kernel(Args p) {
  extern __shared__ __align__(128) std::uint8_t ring[];
  constexpr int kPageBytes = PageShape<kDim>::kBytes;
  grid_dependency_wait();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int head = blockIdx.x;
  // The last rows attend the most tokens: they start first.
  const int block_row = (gridDim.y - 1 - blockIdx.y) * kBlockRows;
  const std::int64_t table_entry = table_at(p.tables, p.layer, p.a.slot, head / p.group);
  const std::int32_t* table = p.tables.blocks + table_entry;
  const auto mask_of = [&](int page) { return p.tables.masks == nullptr ? ~0u : p.tables.masks[table_entry + page]; };
  const int first = p.a.first - shift_of(p.tables, p.layer, p.a.slot, head / p.group);  // table index of row 0
  const int block_first = first + block_row, block_end = first + min(block_row + kBlockRows, p.a.n_rows);
  const int from = p.a.window > 0 ? max(0, block_first + 1 - p.a.window) : 0;
  const int page_begin = from / kKvPageTokens, page_end = (block_end + kKvPageTokens - 1) / kKvPageTokens;

  const auto fetch = [&](int page, int stage) {
#pragma unroll
    for (int i = 0; i < kPrefetchPages; ++i)
      if (page + i < page_end)
        fetch_page<kDim, kThreads, PageReads::kByManyBlocks>(
            shared_address(ring) + (stage * kPrefetchPages + i) * kPageBytes,
            p.tables.base + static_cast<std::int64_t>(table[page + i]) * kPageBytes, 0,
            block_end - (page + i) * kKvPageTokens, threadIdx.x, mask_of(page + i));
    copy_async_commit();
  };

  const int rows[2] = {block_row + warp * 16 + g, block_row + warp * 16 + g + 8};
  std::uint32_t q[PageShape<kDim>::kKeySteps][4];
  const auto row_of = [&](int row) -> const __nv_bfloat16* {
    if (row >= p.a.n_rows) return nullptr;
    return static_cast<const __nv_bfloat16*>(p.a.q) + (static_cast<std::int64_t>(row) * p.a.n_heads + head) * kDim;
  };
  fetch(page_begin, 0);
  load_queries<T, kDim>(q, row_of(rows[0]), row_of(rows[1]));
  RunningRows<kDim> running;
  running.clear();
  const float factor = p.a.scale * kLog2e;
  const int warp_first = first + block_row + warp * 16;

  int stage = 0;
  for (int page = page_begin; page < page_end; page += kPrefetchPages, stage ^= 1) {
    fetch(page + kPrefetchPages, stage ^ 1);
    copy_async_wait<1>();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kPrefetchPages; ++i) {
      const int at = (page + i) * kKvPageTokens;
      if (page + i >= page_end || at > warp_first + 15) break;  // none of this warp's rows attends it
      const std::uint32_t address = shared_address(ring) + (stage * kPrefetchPages + i) * kPageBytes;
      float s[kTokenTiles][4];
      score_page<T, kDim>(s, q, address);
      const std::uint32_t there = mask_of(page + i);
      const bool inside = at + kKvPageTokens - 1 <= warp_first &&
                          (p.a.window == 0 || at > warp_first + 15 - p.a.window) && there == ~0u;
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int token = at + j * 8 + 2 * t + k % 2, position = first + rows[k / 2];
          const bool seen = inside || (token <= position && (p.a.window == 0 || token > position - p.a.window) &&
                                       (there >> (token - at) & 1) != 0);
          s[j][k] = seen ? s[j][k] * factor : -INFINITY;
        }
      running.template take<T>(s, address);
    }
    __syncthreads();
  }
  running.finish();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (rows[r] >= p.a.n_rows) continue;
    const float inverse = running.sum[r] == 0 ? 0.0f : 1.0f / running.sum[r];
    const std::int64_t at = static_cast<std::int64_t>(rows[r]) * p.a.n_heads + head;
    auto* out = static_cast<__nv_bfloat16*>(p.a.out) + at * kDim;
#pragma unroll
    for (int i = 0; i < PageShape<kDim>::kValueTiles; ++i)
      *reinterpret_cast<std::uint32_t*>(out + i * 8 + 2 * t) =
          pack<__nv_bfloat16>(running.out[i][2 * r] * inverse, running.out[i][2 * r + 1] * inverse);
    if (t == 0 && p.a.lse != nullptr)
      p.a.lse[at] = running.sum[r] == 0 ? -INFINITY : (running.max[r] + log2f(running.sum[r])) / kLog2e;
  }
}

template <typename T, int kDim>
void run(const Args& args, const CudaContext& context) {
  constexpr int kShared = kStages * kPrefetchPages * PageShape<kDim>::kBytes;
  static const bool ready = [] {
    cuda_check(cudaFuncSetAttribute(prefill_kernel<T, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
               "prefill attention's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  const dim3 grid(static_cast<unsigned>(args.a.n_heads),
                  static_cast<unsigned>((args.a.n_rows + kBlockRows - 1) / kBlockRows));
  launch(context, "attend_prefill", prefill_kernel<T, kDim>, grid, dim3(kThreads), kShared, args);
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

void attend_prefill_cuda(const PrefillAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                         const CudaContext& context) {
  if (a.n_rows == 0) return;
  const Args args{a, tables, layer, a.n_heads / tables.n_kv_heads};
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
