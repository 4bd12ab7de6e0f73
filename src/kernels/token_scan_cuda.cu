// The scan of all tokens by their 1-bit keys, over the whole device whatever the number of sequences: a warp takes
// stretches of 256 tokens of one KV head, scores go to memory, with each stretch's part of a head's log-sum-exp and
// range.
//
// It multiplies as one_bit_cuda.cuh says. k~ - z is +-s, so that a matrix operand is s with signs from the codes: a
// shift and one bit operation for two channels. Everything that is multiplied is exact in bf16. Codes and levels come
// through a ring in shared memory: with registers alone too few bytes would be on their way.
#include "src/kernels/token_choose_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::tokens;  // NOLINT

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kStretchStages = kStretch / kStage;  // and of a warp's ring

struct Rows {
  RowInfo of[kMostRows];
  int n_pieces;
};

// All rows that choose, their work cut into stretches. The whole block takes part.
__device__ void find_rows(const Args& p, Rows& rows) {
  for (int row = threadIdx.x / kWarp; row < p.rows.n; row += kWarps) {
    RowInfo info = row_info(p, row);
    info.each = info.n_select > 0 ? (info.n + kStretch - 1) / kStretch : 0;
    if (threadIdx.x % kWarp == 0) rows.of[row] = info;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int begin = 0;
    for (int row = 0; row < p.rows.n; ++row) rows.of[row].begin = begin, begin += p.s.n_kv_heads * rows.of[row].each;
    rows.n_pieces = begin;
  }
  __syncthreads();
}

struct Piece {
  int row, kv_head, item;
  int part;  // of the KV head's
};
__device__ __forceinline__ Piece piece_at(const Args& p, const Rows& rows, int flat) {
  Piece at;
  at.row = 0;
  while (flat >= rows.of[at.row].begin + p.s.n_kv_heads * rows.of[at.row].each) ++at.row;
  const RowInfo& info = rows.of[at.row];
  at.kv_head = (flat - info.begin) / info.each;
  at.part = flat - info.begin - at.kv_head * info.each;
  at.item = at.row * p.s.n_kv_heads + at.kv_head;
  return at;
}

template <int kDim>
struct Stage {
  using S = OneBitShape<kDim>;
  static constexpr int kBlocks = kStage / kKvPageTokens;
  static constexpr int kCodeBytes = kBlocks * S::kBlockBytes, kBytes = kCodeBytes + kBlocks * S::kLevelBytes;

  // Codes of the tokens, and the levels of their groups: as many as there may be.
  static __device__ __forceinline__ void fetch(const KvSlots& s, std::int64_t index, int token, std::uint32_t to) {
    const int lane = threadIdx.x % kWarp, n_levels = max(1, kStage / s.group_tokens);
    const std::byte* codes = codes_of(s, index, token / kKvPageTokens);
    const std::byte* levels = levels_of(s, index, token / s.group_tokens);
    each<0>(to + lane * 16, codes + lane * 16, kCodeBytes);
    each<0>(to + kCodeBytes + lane * 16, levels + lane * 16, n_levels * S::kLevelBytes);
  }
  // Pieces of 16 bytes, a warp's row after the other: offsets that need no arithmetic.
  template <int kOffset>
  static __device__ __forceinline__ void each(std::uint32_t to, const std::byte* from, int bytes) {
    if constexpr (kOffset < kCodeBytes) {
      if (kOffset < bytes)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0 + %2], [%1 + %2], 16;" ::"r"(to), "l"(from), "n"(kOffset));
      each<kOffset + 16 * kWarp>(to, from, bytes);
    }
  }
};

__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ __forceinline__ uint2 load_shared_half(std::uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}

// A warp's scores of a stage, on their way from the fragments' order to that of the tokens.
constexpr int kScoreStride = kStage + 4;  // so that lanes of different heads meet different banks

template <int kDim>
__host__ __device__ constexpr int scan_warp_bytes(int group) {
  return kStretchStages * Stage<kDim>::kBytes + group * kScoreStride * 4;
}

template <int kDim, bool kWide>
__global__ void __launch_bounds__(kThreads, 2) scan_kernel(Args p) {
  using S = OneBitShape<kDim>;
  constexpr int kHalves = kWide ? 2 : 1;  // of eight heads
  constexpr int kBlocks = Stage<kDim>::kBlocks;
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ Rows rows;
  let_next_start();
  if (!p.early) wait_for_previous();
  find_rows(p, rows);
  if (rows.n_pieces == 0) return;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  std::uint8_t* own_memory = memory + threadIdx.x / kWarp * scan_warp_bytes<kDim>(p.group);
  const std::uint32_t ring = shared_address(own_memory);
  auto* out = reinterpret_cast<float*>(own_memory + kStretchStages * Stage<kDim>::kBytes);
  const int warps = gridDim.x * kWarps, level_shift = __ffs(p.s.group_tokens / kKvPageTokens) - 1;

  struct Work {
    Piece at;
    std::int64_t index;
    int first, skip, n, base;  // of the stretch; as RowInfo
    float alpha;
    bool logs;
  };
  const auto work_at = [&](int flat) {
    Work w;
    w.n = 0;
    if (flat >= rows.n_pieces) return w;
    w.at = piece_at(p, rows, flat);
    const RowInfo& info = rows.of[w.at.row];
    w.index = slot_index(p.s, p.layer, info.place, w.at.kv_head);
    w.first = w.at.part * kStretch;
    w.skip = info.skip, w.n = info.n, w.base = info.base, w.alpha = info.alpha, w.logs = info.logs(p.group);
    return w;
  };
  const auto fetch = [&](const Work& w, int k) {
    const int i = w.first + k * kStage;
    if (w.n > 0 && i < w.n) Stage<kDim>::fetch(p.s, w.index, w.base + i, ring + k * Stage<kDim>::kBytes);
    copy_async_commit();
  };

  const int first = threadIdx.x / kWarp * gridDim.x + blockIdx.x;
  Work work = work_at(first);
  for (int k = 0; k < kStretchStages; ++k) fetch(work, k);
  if (p.early) wait_for_previous();
#pragma unroll 1
  for (int flat = first; flat < rows.n_pieces; flat += warps) {
    uint4 q[kHalves][S::kChunks];
    const auto* head = static_cast<const __nv_bfloat16*>(p.s.last_q) + work.index * p.group * kDim;
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        q[h][c] = {0, 0, 0, 0};
        if (g + 8 * h < p.group)
          q[h][c] = __ldcg(reinterpret_cast<const uint4*>(head + (g + 8 * h) * kDim + c * 32 + t * 8));
      }
    const Work next = work_at(flat + warps);
    HeadStats stats[kWide ? kMostGroup : 8];
#pragma unroll
    for (HeadStats& x : stats) x.clear();
#pragma unroll 1
    for (int k = 0; k < kStretchStages; ++k) {
      copy_async_wait<kStretchStages - 1>();
      __syncwarp();
      const int begin = work.first + k * kStage;
      const std::uint32_t codes = ring + k * Stage<kDim>::kBytes, levels = codes + Stage<kDim>::kCodeBytes;
      if (begin < work.n) {
        // q . z of the stage's groups, row g: group g.
        float base[kHalves][4] = {};
#pragma unroll
        for (int c = 0; c < S::kChunks; ++c) {
          uint4 z{0, 0, 0, 0};
          if (g < kBlocks) z = load_shared(levels + g * S::kLevelBytes + c * 64 + t * 16);
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            mma<__nv_bfloat16>(base[h], z.x, 0, z.y, 0, q[h][c].x, q[h][c].y);
            mma<__nv_bfloat16>(base[h], z.z, 0, z.w, 0, q[h][c].z, q[h][c].w);
          }
        }
#pragma unroll 2
        for (int b = 0; b < kBlocks; ++b) {
          const int level = b >> level_shift;
          std::uint32_t s[S::kPairs], word[S::kWords];
#pragma unroll
          for (int c = 0; c < S::kChunks; ++c) {
            const uint4 v = load_shared(levels + level * S::kLevelBytes + 2 * kDim + c * 64 + t * 16);
            s[4 * c] = v.x, s[4 * c + 1] = v.y, s[4 * c + 2] = v.z, s[4 * c + 3] = v.w;
          }
          if constexpr (S::kWords == 4) {
            const uint4 v = load_shared(codes + b * S::kBlockBytes + lane * 16);
            word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
          } else {
            const uint2 v = load_shared_half(codes + b * S::kBlockBytes + lane * 8);
            word[0] = v.x, word[1] = v.y;
          }
          float acc[kHalves][2][4];  // by halves of the block's tokens
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            const float x = __shfl_sync(~0u, base[h][0], level * 4 + t),
                        y = __shfl_sync(~0u, base[h][1], level * 4 + t);
#pragma unroll
            for (int i = 0; i < 2; ++i) acc[h][i][0] = acc[h][i][2] = x, acc[h][i][1] = acc[h][i][3] = y;
          }
          // Pair j of token g + 8 n.
          const auto key = [&](int n, int j) {
            const int bit = n % S::kPerWord * S::kPairs + j;
            return ((word[n / S::kPerWord] << (15 - bit)) & 0x80008000u) ^ s[j];
          };
#pragma unroll
          for (int j = 0; j < S::kPairs; j += 2)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const std::uint32_t a0 = key(2 * i, j), a1 = key(2 * i + 1, j), a2 = key(2 * i, j + 1),
                                  a3 = key(2 * i + 1, j + 1);
#pragma unroll
              for (int h = 0; h < kHalves; ++h) {
                const uint4& v = q[h][j / 4];
                mma<__nv_bfloat16>(acc[h][i], a0, a1, a2, a3, j % 4 == 0 ? v.x : v.z, j % 4 == 0 ? v.y : v.w);
              }
            }
#pragma unroll
          for (int h = 0; h < kHalves; ++h)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int of = 8 * h + 2 * t + e;
              if (of >= p.group) continue;
#pragma unroll
              for (int n = 0; n < 4; ++n)
                out[of * kScoreStride + b * kKvPageTokens + g + 8 * n] = acc[h][n / 2][n % 2 * 2 + e];
            }
        }
      }
      __syncwarp();
      fetch(next, k);
      if (begin >= work.n) continue;
      const int i = begin + lane * 4;
      const bool all = begin >= work.skip && begin + kStage <= work.n;
      const auto counts = [&](int at) { return at >= work.skip && at < work.n; };
#pragma unroll
      for (int h = 0; h < (kWide ? kMostGroup : 8); ++h) {
        if (h >= p.group) break;
        float4 v = *reinterpret_cast<const float4*>(out + h * kScoreStride + lane * 4);
        *reinterpret_cast<float4*>(p.scores + (static_cast<std::int64_t>(work.at.item) * p.group + h) * p.width + i) =
            v;
        if (!all) {
          if (!counts(i)) v.x = NAN;
          if (!counts(i + 1)) v.y = NAN;
          if (!counts(i + 2)) v.z = NAN;
          if (!counts(i + 3)) v.w = NAN;
        }
        stats[h].take(v, work.alpha, work.logs);
      }
    }
#pragma unroll
    for (int h = 0; h < (kWide ? kMostGroup : 8); ++h) {
      if (h >= p.group) break;
      HeadStats& x = stats[h];
      x.reduce(work.alpha, work.logs);
      if (lane == 0)
        p.partial[(static_cast<std::int64_t>(work.at.item) * p.group + h) * p.max_parts + work.at.part] = {x.max, x.sum,
                                                                                                           x.min, 0};
    }
    work = next;
  }
  copy_async_wait<0>();
}

// ---- launches

template <int kDim, bool kWide>
void scan_as(const Args& a, const CudaContext& context) {
  static const bool ready = [] {
    cuda_check(cudaFuncSetAttribute(scan_kernel<kDim, kWide>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kWarps * scan_warp_bytes<kDim>(kWide ? kMostGroup : 8)),
               "the scan's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  launch(context, "scan_one_bit", scan_kernel<kDim, kWide>,
         dim3(static_cast<unsigned>(2 * device_attribute(cudaDevAttrMultiProcessorCount))), dim3(kThreads),
         static_cast<std::size_t>(kWarps) * static_cast<std::size_t>(scan_warp_bytes<kDim>(a.group)), a);
}

}  // namespace

void cuda::tokens::scan(const Args& a, const CudaContext& context) {
  if (a.s.head_dim == 128) {
    a.group > 8 ? scan_as<128, true>(a, context) : scan_as<128, false>(a, context);
  } else {
    a.group > 8 ? scan_as<64, true>(a, context) : scan_as<64, false>(a, context);
  }
}

}  // namespace mneme
