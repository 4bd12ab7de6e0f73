// Scan of all tokens by their 1-bit keys, over the whole device for any number of sequences: thread blocks take equal
// shares of all stages (128 tokens of one KV head), their warps one stage after the other. Scores go to device memory,
// with each warp's part of a head's log-sum-exp and range.
//
// one_bit_cuda.cuh has the mma layout. k~ - z is +-s, so the matrix operand is s with signs from the codes: a shift and
// one bit operation for two channels. All operands are exact in bf16. Codes and levels are staged in a ring in shared
// memory: registers alone would keep too few bytes in flight.
//
// Bound by the latency of 228 instructions per 32 tokens (144 of them signs and mma) in 16 warps per SM; fetching alone
// takes 60 % of the time. So the statistics of a head's scores are reduced once per warp and head, not per stage.
#include "src/selection/topk/token_selection_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::tokens;  // NOLINT

constexpr int kThreads = 32 * kScanWarps;
// Limits registers as for this many threads per block: next to two blocks of the scan an SM then has room for a block
// of a recall that still runs. Otherwise eight blocks of the scan would start only when the others end.
constexpr int kRegisterLimitThreads = kThreads + 32;
constexpr int kRing = 2;  // stages in flight per warp

struct ScanStages {
  TokenRegion of[kMaxRows];
  int n_stages;
};

// Finds the rows that select, and the first stage of each. Called by the whole block.
__device__ void find_rows(const TokenArgs& p, ScanStages& rows) {
  for (int row = threadIdx.x / kWarp; row < p.rows.n; row += kScanWarps) {
    TokenRegion info = row_info(p, row);
    info.each = info.n_select + info.n_select_now > 0 ? (info.n + kStage - 1) / kStage : 0;
    if (threadIdx.x % kWarp == 0) rows.of[row] = info;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int begin = 0;
    for (int row = 0; row < p.rows.n; ++row) rows.of[row].begin = begin, begin += p.s.n_kv_heads * rows.of[row].each;
    rows.n_stages = begin;
  }
  __syncthreads();
}

// A KV head of a row: stages [first, stop) of all stages.
struct Head {
  int row, kv_head, first, stop;
};
__device__ __forceinline__ Head head_of(const TokenArgs& p, const ScanStages& rows, int stage) {
  Head h;
  h.row = 0;
  while (stage >= rows.of[h.row].begin + p.s.n_kv_heads * rows.of[h.row].each) ++h.row;
  const TokenRegion& info = rows.of[h.row];
  h.kv_head = (stage - info.begin) / info.each;
  h.first = info.begin + h.kv_head * info.each;
  h.stop = h.first + info.each;
  return h;
}

template <int kDim>
struct Stage {
  using S = OneBitShape<kDim>;
  static constexpr int kBlocks = kStage / kKvPageTokens;
  static constexpr int kCodeBytes = kBlocks * S::kBlockBytes, kBytes = kCodeBytes + kBlocks * S::kLevelBytes;

  // Fetches codes of the tokens and levels of their groups, as many as there may be, from the lane's addresses.
  static __device__ __forceinline__ void fetch(const std::byte* codes, const std::byte* levels, int level_bytes,
                                               std::uint32_t to) {
    each<0>(to, codes, kCodeBytes);
    each<0>(to + kCodeBytes, levels, level_bytes);
  }
  // 16-byte pieces, one warp row after the other: constant offsets.
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

// Statistics of a head's scores that a lane has seen.
struct alignas(16) Seen {
  float max, sum, min, base;  // sum of 2^(scale * score - base), only for logarithms; scale: alpha * log2(e)
  __device__ void clear() { max = -INFINITY, sum = 0, min = INFINITY, base = -INFINITY; }
  // NaN is ignored.
  __device__ __forceinline__ void take(float4 v, float scale, bool logs) {
    constexpr float kRoom = 64;  // sums up to 2^64 do not overflow
    const float most = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
    max = fmaxf(max, most);
    min = fminf(min, fminf(fminf(v.x, v.y), fminf(v.z, v.w)));
    if (!logs) return;
    if (scale * most > base + kRoom) {  // true for the first, rarely afterwards
      const float before = base;
      base = fminf(scale * most, kLargest);
      if (sum > 0) sum *= exp2_of(before - base);
      if (most == INFINITY) {  // counts as the largest float
        const auto one = [&](float& x) {
          if (x == INFINITY) sum += 1, x = NAN;
        };
        one(v.x), one(v.y), one(v.z), one(v.w);
      }
    }
    const auto weight = [&](float x) { return fmaxf(exp2_of(fmaf(scale, x, -base)), 0.0f); };  // 0 for NaN
    sum += (weight(v.x) + weight(v.y)) + (weight(v.z) + weight(v.w));
  }
};

// Reduces [group][lanes] statistics of a warp to one per head: lanes are divided among the heads, so that all are
// reduced at once. The first lane of a head has the result; head >= group: the lane has none.
struct HeadSeen {
  int head;
  bool first;
  HeadStats stats;
};
__device__ __forceinline__ HeadSeen reduce_stats(const Seen* seen, int group, float scale, bool logs) {
  int lanes = kWarp;  // per head
  while (lanes * group > kWarp) lanes /= 2;
  const int lane = threadIdx.x % kWarp, from = lane % lanes;
  HeadSeen all{lane / lanes, from == 0, {}};
  HeadStats& x = all.stats;
  x.clear();
  const bool has = all.head < group;
  const Seen* own = seen + (has ? all.head : 0) * kWarp;
  for (int i = from; i < kWarp; i += lanes) x.max = fmaxf(x.max, own[i].max), x.min = fminf(x.min, own[i].min);
  for (int d = lanes / 2; d > 0; d /= 2) {
    x.max = fmaxf(x.max, __shfl_xor_sync(~0u, x.max, d));
    x.min = fminf(x.min, __shfl_xor_sync(~0u, x.min, d));
  }
  if (!logs) return all;
  const float top = fminf(scale * x.max, kLargest);
  if (x.max > -INFINITY)
    for (int i = from; i < kWarp; i += lanes) x.sum += own[i].sum * exp2_of(own[i].base - top);
  for (int d = lanes / 2; d > 0; d /= 2) x.sum += __shfl_xor_sync(~0u, x.sum, d);
  return all;
}

// Transposes a warp's scores of a stage from fragment order to token order.
constexpr int kScoreStride = kStage + 4;  // so that lanes of different heads use different banks

// The ring, the scores and each lane's statistics of each head.
template <int kDim>
__host__ __device__ constexpr int scan_warp_bytes(int group) {
  return kRing * Stage<kDim>::kBytes + group * (kScoreStride * 4 + kWarp * static_cast<int>(sizeof(Seen)));
}

// Fetches stages into a warp's ring, up to the block's `end`.
template <int kDim>
struct Fetcher {
  using S = OneBitShape<kDim>;
  const TokenArgs& p;
  const ScanStages& rows;
  int end, lane, level_bytes;
  Head head;  // of the last stage that was fetched
  const std::byte *codes, *levels;

  __device__ __forceinline__ Fetcher(const TokenArgs& args, const ScanStages& of, int stop)
      : p(args),
        rows(of),
        end(stop),
        lane(threadIdx.x % kWarp),
        level_bytes(max(1, kStage / args.s.index.entries.tokens) * S::kLevelBytes),
        head{0, 0, 0, 0},
        codes(nullptr),
        levels(nullptr) {}
  __device__ __forceinline__ void fetch(int stage, std::uint32_t to) {
    if (stage < end) {
      if (stage >= head.stop) {
        head = head_of(p, rows, stage);
        const TokenRegion& info = rows.of[head.row];
        const std::int64_t index = slot_index(p.s, p.layer, info.seq_slot, head.kv_head);
        codes = codes_of(p.s, index, info.base / kKvPageTokens) + lane * 16;
        levels = levels_of(p.s, index, 0) + lane * 16;
      }
      const int i = (stage - head.first) * kStage;
      const std::int64_t group = (rows.of[head.row].base + i) / p.s.index.entries.tokens;
      Stage<kDim>::fetch(codes + static_cast<std::int64_t>(i / kKvPageTokens) * S::kBlockBytes,
                         levels + group * S::kLevelBytes, level_bytes, to + lane * 16);
    }
    copy_async_commit();
  }
};

// A group's queries as operand B of mma, eight heads a half: lane (g, t) has channels of heads g and g + 8.
template <int kDim, bool kWide>
struct Queries {
  using S = OneBitShape<kDim>;
  static constexpr int kHalves = kWide ? 2 : 1, kBlocks = Stage<kDim>::kBlocks;
  uint4 q[kHalves][S::kChunks];

  __device__ __forceinline__ void load(const __nv_bfloat16* heads, int group) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        q[h][c] = {0, 0, 0, 0};
        if (g + 8 * h < group)
          q[h][c] = __ldcg(reinterpret_cast<const uint4*>(heads + (g + 8 * h) * kDim + c * 32 + t * 8));
      }
  }
  // q . z of a stage's groups of tokens, row g: group g.
  __device__ __forceinline__ void middles(std::uint32_t levels, float (&base)[kHalves][4]) const {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
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
  }
  // Adds q . (k~ - z) of a block of 32 tokens, whose codes and steps are at these addresses, to acc, by halves of tokens.
  __device__ __forceinline__ void add_block(std::uint32_t codes, std::uint32_t steps,
                                            float (&acc)[kHalves][2][4]) const {
    const int lane = threadIdx.x % kWarp, t = lane % 4;
    std::uint32_t s[S::kPairs], word[S::kWords];
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      const uint4 v = load_shared(steps + c * 64 + t * 16);
      s[4 * c] = v.x, s[4 * c + 1] = v.y, s[4 * c + 2] = v.z, s[4 * c + 3] = v.w;
    }
    if constexpr (S::kWords == 4) {
      const uint4 v = load_shared(codes + lane * 16);
      word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
    } else {
      const uint2 v = load_shared_half(codes + lane * 8);
      word[0] = v.x, word[1] = v.y;
    }
    const auto key = [&](int n, int j) {  // pair j of token g + 8 n
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
  }
  // Scores of a stage to out [group][kScoreStride].
  __device__ __forceinline__ void score(std::uint32_t codes, int level_shift, int group, float* out) const {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    const std::uint32_t levels = codes + Stage<kDim>::kCodeBytes;
    float base[kHalves][4] = {};
    middles(levels, base);
#pragma unroll 2
    for (int b = 0; b < kBlocks; ++b) {
      const int level = b >> level_shift;
      float acc[kHalves][2][4];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const float x = __shfl_sync(~0u, base[h][0], level * 4 + t), y = __shfl_sync(~0u, base[h][1], level * 4 + t);
#pragma unroll
        for (int i = 0; i < 2; ++i) acc[h][i][0] = acc[h][i][2] = x, acc[h][i][1] = acc[h][i][3] = y;
      }
      add_block(codes + b * S::kBlockBytes, levels + level * S::kLevelBytes + 2 * kDim, acc);
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int of = 8 * h + 2 * t + e;
          if (of >= group) continue;
#pragma unroll
          for (int n = 0; n < 4; ++n)
            out[of * kScoreStride + b * kKvPageTokens + g + 8 * n] = acc[h][n / 2][n % 2 * 2 + e];
        }
    }
  }
};

// Writes a stage's scores, tokens i to i + 127 of a KV head, and takes the candidates among them into the statistics.
__device__ __forceinline__ void write_scores(const TokenArgs& p, const TokenRegion& info, int item, int i,
                                             const float* out, float scale, bool logs, Seen* seen) {
  const int own_token = i + threadIdx.x % kWarp * 4;
  const bool all = i >= info.skip && i + kStage <= info.n_now;
  float* to = p.scores + static_cast<std::int64_t>(item) * p.group * p.width + own_token;
#pragma unroll 2
  for (int h = 0; h < p.group; ++h) {
    float4 v = *reinterpret_cast<const float4*>(out + h * kScoreStride + threadIdx.x % kWarp * 4);
    *reinterpret_cast<float4*>(to + h * p.width) = v;
    if (!all) {
      const auto mask = [&](float& x, int j) {
        if (own_token + j < info.skip || own_token + j >= info.n_now) x = NAN;
      };
      mask(v.x, 0), mask(v.y, 1), mask(v.z, 2), mask(v.w, 3);
    }
    Seen own = seen[h * kWarp];
    own.take(v, scale, logs);
    seen[h * kWarp] = own;
  }
}

// The block's stages [begin, end) of all stages, of which as many blocks have some as there is work for.
struct Stages {
  int n, blocks, begin, end;
  __device__ __forceinline__ explicit Stages(int n_stages)
      : n(n_stages), blocks(min(static_cast<int>(gridDim.x), max(1, n_stages / kScanWarps))) {
    begin = first_of(blockIdx.x), end = first_of(blockIdx.x + 1);
  }
  __device__ __forceinline__ int first_of(int block) const {
    return static_cast<int>(block * std::int64_t{n} / blocks);
  }
  __device__ __forceinline__ int block_of(int stage) const {
    return static_cast<int>(((stage + 1) * std::int64_t{blocks} - 1) / n);
  }
  __device__ __forceinline__ bool none() const { return static_cast<int>(blockIdx.x) >= blocks || begin >= end; }
};

template <int kDim, bool kWide>
__global__ void __launch_bounds__(kRegisterLimitThreads, 2) scan_kernel(TokenArgs p) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ ScanStages rows;
  launch_dependents();
  if (!p.early) grid_dependency_wait();
  find_rows(p, rows);
  const Stages stages(rows.n_stages);
  if (stages.none()) {
    if (p.early) grid_dependency_wait();  // a later kernel must not take this one's end for the end of those before
    return;
  }
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  std::uint8_t* own_memory = memory + warp * scan_warp_bytes<kDim>(p.group);
  const std::uint32_t ring = shared_address(own_memory);
  Seen* const seen = reinterpret_cast<Seen*>(own_memory + kRing * Stage<kDim>::kBytes) + lane;
  auto* out = reinterpret_cast<float*>(own_memory + kRing * Stage<kDim>::kBytes +
                                       p.group * kWarp * static_cast<int>(sizeof(Seen)));
  const int level_shift = __ffs(p.s.index.entries.tokens / kKvPageTokens) - 1;

  Fetcher<kDim> fetcher(p, rows, stages.end);  // runs two stages ahead of the mma
  int stage = stages.begin + warp, k = 0;      // k: index in the ring
  for (int i = 0; i < kRing; ++i) fetcher.fetch(stage + i * kScanWarps, ring + i * Stage<kDim>::kBytes);
  if (p.early) grid_dependency_wait();
#pragma unroll 1
  for (int from = stages.begin; from < stages.end;) {
    const Head at = head_of(p, rows, from);
    const int stop = min(at.stop, stages.end), item = at.row * p.s.n_kv_heads + at.kv_head;
    const TokenRegion& info = rows.of[at.row];
    const float scale = info.alpha * kLog2e;
    const bool logs = info.logs(p.group);
    Queries<kDim, kWide> queries;
    queries.load(static_cast<const __nv_bfloat16*>(p.s.selection.last_q) +
                     slot_index(p.s, p.layer, info.seq_slot, at.kv_head) * p.group * kDim,
                 p.group);
    for (int h = 0; h < p.group; ++h) seen[h * kWarp].clear();
#pragma unroll 1
    for (; stage < stop; stage += kScanWarps) {
      copy_async_wait<kRing - 1>();
      __syncwarp();
      const std::uint32_t codes = ring + k * Stage<kDim>::kBytes;
      queries.score(codes, level_shift, p.group, out);
      __syncwarp();
      fetcher.fetch(stage + kRing * kScanWarps, codes);
      k = k + 1 == kRing ? 0 : k + 1;
      write_scores(p, info, item, (stage - at.first) * kStage, out, scale, logs, seen);
    }
    // One part per warp of every block that has stages of the head.
    const int part = (static_cast<int>(blockIdx.x) - stages.block_of(at.first)) * kScanWarps + warp;
    __syncwarp();
    const HeadSeen all = reduce_stats(seen - lane, p.group, scale, logs);
    __syncwarp();
    if (all.first && all.head < p.group)
      p.partial[(static_cast<std::int64_t>(item) * p.group + all.head) * p.max_parts + part] = {
          all.stats.max, all.stats.sum, all.stats.min, 0};
    if (at.stop <= stages.end && threadIdx.x == 0) p.n_parts[item] = part + kScanWarps;
    from = stop;
  }
  copy_async_wait<0>();
}

// ---- launches

template <int kDim, bool kWide>
void scan_as(const TokenArgs& a, const CudaContext& context) {
  static const bool ready = [] {
    cuda_check(cudaFuncSetAttribute(scan_kernel<kDim, kWide>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kScanWarps * scan_warp_bytes<kDim>(kWide ? kMaxGroup : 8)),
               "the scan's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  launch(context, "scan_one_bit", scan_kernel<kDim, kWide>, dim3(static_cast<unsigned>(2 * sm_count())), dim3(kThreads),
         static_cast<std::size_t>(kScanWarps) * static_cast<std::size_t>(scan_warp_bytes<kDim>(a.group)), a);
}

}  // namespace

void cuda::tokens::scan(const TokenArgs& a, const CudaContext& context) {
  if (a.terms != nullptr) return scan_sketches(a, context);
  if (a.s.head_dim == 128) {
    a.group > 8 ? scan_as<128, true>(a, context) : scan_as<128, false>(a, context);
  } else {
    a.group > 8 ? scan_as<64, true>(a, context) : scan_as<64, false>(a, context);
  }
}

}  // namespace mneme
