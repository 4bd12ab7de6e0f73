// Scan of all tokens by the sketches of their pages, in place of the scan by 1-bit keys (token_scan_cuda.cu): the same
// scores and statistics for token_select_cuda.cu. A warp takes a stage of four pages at a time, which cp.async copies
// to shared memory while the stage before is scored.
//
//   means         eight lanes a page
//   coefficients  tensor cores, eight tokens at a time: rows are up to eight query heads' weights, their upper and their
//                 lower bf16 halves; nibbles n become 128 + n, which is taken off the products
#include <algorithm>

#include "src/selection/topk/head_terms.cuh"
#include "src/selection/topk/token_selection_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::tokens;  // NOLINT

constexpr int kThreads = 32 * kScanWarps;
constexpr int kPages = kStage / kKvPageTokens, kRing = 2, kHeads = 8;
constexpr int kPageLanes = kWarp / kPages;  // of a page's mean
constexpr int kSteps = 2;                   // of 16 coefficients
constexpr float kBias = 136;                // of 128 + n over n - 8
constexpr int kBlocks = kKvPageTokens / 8;  // of eight tokens

// Channels of a lane, and a row of queries with room against bank conflicts.
template <int kDim>
struct Shape {
  static constexpr int kEach = kDim / kPageLanes, kPadded = kEach + 4, kRow = kPageLanes * kPadded;
};

// A stage with up to 16 bytes before and behind it, in units of 16 bytes.
__host__ __device__ constexpr int stage_bytes(int entry_bytes) {
  return (kPages * entry_bytes + 15) / 16 * 16 + 16;
}

struct Head {
  float base, spread, bias;  // alpha q . mean; alpha^2 q^T C q; of products with coefficients
};

struct Shared {
  Head heads[kHeads];
  float all[kScanWarps][kPages][kHeads];  // what a page adds to its tokens
};

// The KV head's stages.
struct Work {
  RowInfo info;
  const std::byte* entries;  // of the page at Info::base
  int n_stages, n_pages;     // pages that have entries
};

__device__ __forceinline__ void fetch(const Work& w, int entry_bytes, int stage, std::uint32_t to) {
  if (stage < w.n_stages) {
    const std::byte* from = w.entries + static_cast<std::int64_t>(stage) * kPages * entry_bytes;
    const int skew = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) % 16),
              bytes = min(kPages, w.n_pages - stage * kPages) * entry_bytes + skew;
    for (int i = static_cast<int>(threadIdx.x) % kWarp * 16; i < bytes; i += kWarp * 16)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i), "l"(from - skew + i),
                   "r"(min(16, bytes - i)));
  }
  copy_async_commit();
}

__device__ __forceinline__ float half_at(const std::uint8_t* at) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const std::uint16_t*>(at)));
}

// Weights of up to 32 coefficients, as rows g and g + 8 of the first mma operand.
struct Weights {
  std::uint32_t a[kSteps][4];

  __device__ void load(const HeadTerms* terms, int group, int rank, Head* heads) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
    float bias = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float high[2], low[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int c = 16 * step + 8 * half + 2 * t + i;
          const float x = g < group && c < rank ? terms[g].of_basis[c] : 0.0f;
          high[i] = widen(narrow<__nv_bfloat16>(x)), low[i] = widen(narrow<__nv_bfloat16>(x - high[i]));
          bias += high[i] + low[i];
        }
        a[step][2 * half] = pack<__nv_bfloat16>(high[0], high[1]);
        a[step][2 * half + 1] = pack<__nv_bfloat16>(low[0], low[1]);
      }
    bias = warp_sum<4>(bias);
    if (t == 0 && threadIdx.x < kWarp) heads[g].bias = kBias * bias;
  }
};

// What the pages of a stage add to their tokens, by head.
template <int kDim>
__device__ void score_means(const std::uint8_t* stage, int entry_bytes, int rank, const float* q, const Shared& s,
                            int group, float alpha, float (&all)[kPages][kHeads]) {
  using S = Shape<kDim>;
  const int lane = threadIdx.x % kWarp, page = lane / kPageLanes, own = lane % kPageLanes;
  const std::uint8_t* entry = stage + page * entry_bytes;
  float x[S::kEach];
#pragma unroll
  for (int i = 0; i < S::kEach; i += 2) {
    const auto two = *reinterpret_cast<const std::uint16_t*>(entry + own * S::kEach + i);
    x[i] = static_cast<float>(static_cast<std::int8_t>(two & 0xff));
    x[i + 1] = static_cast<float>(static_cast<std::int8_t>(two >> 8));
  }
  const std::uint8_t* scales = entry + kDim + rank * (kKvPageTokens / 2);
  const float of_mean = half_at(scales), variance = variance_of(scales[4]),
              limit = spread_limit_of(static_cast<float>(kKvPageTokens));
  for (int g = 0; g < group; ++g) {
    const auto* row = reinterpret_cast<const float4*>(q + g * S::kRow + own * S::kPadded);
    float dot = 0;
#pragma unroll
    for (int i = 0; i < S::kEach; i += 4) {
      const float4 v = row[i / 4];
      dot = fmaf(v.x, x[i], dot), dot = fmaf(v.y, x[i + 1], dot);
      dot = fmaf(v.z, x[i + 2], dot), dot = fmaf(v.w, x[i + 3], dot);
    }
    dot = warp_sum<kPageLanes>(dot);
    const Head& head = s.heads[g];
    if (own == 0) all[page][g] = fmaf(alpha * of_mean, dot, head.base) + gain_of(head.spread * variance, limit);
  }
  __syncwarp();
}

// Values of a lane's two tokens of a block, for head g, without the page's part.
__device__ __forceinline__ float2 multiply(const Weights& w, const std::uint8_t* nibbles, int block, int rank) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const std::uint8_t* own = nibbles + block * 4 + g / 4 * 2;  // token g of the block, of coefficient 0
  const auto pair = [&](int c) {
    const auto at = [&](int i) {
      return std::uint32_t{*reinterpret_cast<const std::uint16_t*>(own + min(i, rank - 1) * (kKvPageTokens / 2))};
    };
    return ((at(c) | at(c + 1) << 16) >> (g % 4 * 4) & 0x000f000fu) | 0x43004300u;
  };
  float c[4] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (16 * step >= rank) break;
    mma<__nv_bfloat16>(c, w.a[step][0], w.a[step][1], w.a[step][2], w.a[step][3], pair(16 * step + 2 * t),
                       pair(16 * step + 8 + 2 * t));
  }
  return {c[0] + c[2], c[1] + c[3]};
}

// NaN is ignored.
__device__ __forceinline__ void take(HeadStats& stats, float alpha, bool logs, float v) {
  if (!(v > -INFINITY)) return;
  stats.min = fminf(stats.min, v);
  if (logs) {
    const float most = scaled(alpha, fmaxf(stats.max, v));
    stats.sum = stats.sum * __expf(scaled(alpha, stats.max) - most) + __expf(scaled(alpha, v) - most);
  }
  stats.max = fmaxf(stats.max, v);
}

// Statistics of head g over the lanes 4 g + t.
__device__ __forceinline__ void reduce(HeadStats& x, float alpha) {
  const float own = x.max;
#pragma unroll
  for (int d = 1; d < 4; d *= 2)
    x.max = fmaxf(x.max, __shfl_xor_sync(~0u, x.max, d)), x.min = fminf(x.min, __shfl_xor_sync(~0u, x.min, d));
  x.sum = own > -INFINITY ? x.sum * __expf(scaled(alpha, own) - scaled(alpha, x.max)) : 0.0f;
  x.sum = warp_sum<4>(x.sum);
}

__device__ bool find_work(const Args& p, int item, Work& w) {
  const int row = item / p.s.n_kv_heads;
  w.info = row_info(p, row);
  if (w.info.n_select + w.info.n_select_now == 0) return false;
  const std::int64_t index = slot_index(p.s, p.layer, w.info.seq_slot, item % p.s.n_kv_heads);
  const UnitEntries& e = p.s.entries;
  const int first = w.info.base / kKvPageTokens;
  w.entries = e.data + (index * e.most + first) * static_cast<std::int64_t>(e.bytes);
  w.n_stages = (w.info.n + kStage - 1) / kStage;
  w.n_pages = min(e.most - first, (w.info.n + kKvPageTokens - 1) / kKvPageTokens);
  return true;
}

// The group's queries by eight lanes' channels, and the heads' terms. Called by the whole block.
template <int kDim>
__device__ void load_heads(const Args& p, const Work& w, int item, const HeadTerms* terms, float* q, Shared& s) {
  using S = Shape<kDim>;
  const auto* from = static_cast<const __nv_bfloat16*>(p.s.last_q) +
                     slot_index(p.s, p.layer, w.info.seq_slot, item % p.s.n_kv_heads) * p.group * kDim;
  for (int i = threadIdx.x; i < p.group * kDim; i += kThreads) {
    const int g = i / kDim, c = i % kDim;
    const std::uint16_t bits = __ldcg(reinterpret_cast<const std::uint16_t*>(from) + i);
    q[g * S::kRow + c / S::kEach * S::kPadded + c % S::kEach] = widen(__ushort_as_bfloat16(bits));
  }
  const int g = threadIdx.x;
  if (g >= p.group) return;
  const float alpha = w.info.alpha;
  s.heads[g].base = alpha * terms[g].sum(terms[g].base);
  s.heads[g].spread = fmaxf(0.0f, alpha * alpha * terms[g].sum(terms[g].spread));
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) scan_kernel(Args p) {
  extern __shared__ __align__(16) std::uint8_t ring[];  // [kScanWarps][kRing] stages; then queries
  __shared__ Shared shared;
  launch_dependents();
  const int item = blockIdx.y, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const UnitEntries& e = p.s.entries;
  const int bytes = stage_bytes(e.bytes), n_warps = static_cast<int>(gridDim.x) * kScanWarps,
            part = static_cast<int>(blockIdx.x) * kScanWarps + warp;
  grid_dependency_wait();
  Work w;
  if (!find_work(p, item, w)) return;
  std::uint8_t* own = ring + warp * kRing * bytes;
  auto* q = reinterpret_cast<float*>(ring + kScanWarps * kRing * bytes);
  for (int i = 0; i < kRing; ++i) fetch(w, e.bytes, part + i * n_warps, shared_address(own + i * bytes));
  const HeadTerms* terms = p.terms + static_cast<std::int64_t>(item) * p.group;
  Weights weights;
  weights.load(terms, p.group, e.rank, shared.heads);
  load_heads<kDim>(p, w, item, terms, q, shared);
  __syncthreads();
  const float alpha = w.info.alpha, inverse = 1.0f / alpha, bias = g < p.group ? shared.heads[g].bias : 0.0f;
  const bool logs = w.info.logs(p.group);
  float* scores = p.scores + (static_cast<std::int64_t>(item) * p.group + min(g, p.group - 1)) * p.width + 2 * t;
  HeadStats stats;
  stats.clear();
  int k = 0;
#pragma unroll 1
  for (int stage = part; stage < w.n_stages; stage += n_warps, k = k + 1 == kRing ? 0 : k + 1) {
    copy_async_wait<kRing - 1>();
    __syncwarp();
    const std::byte* from = w.entries + static_cast<std::int64_t>(stage) * kPages * e.bytes;
    const std::uint8_t* here = own + k * bytes + reinterpret_cast<std::uintptr_t>(from) % 16;
    score_means<kDim>(here, e.bytes, e.rank, q, shared, p.group, alpha, shared.all[warp]);
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      const std::uint8_t* nibbles = here + page * e.bytes + kDim;
      const float scale = alpha * half_at(nibbles + e.rank * (kKvPageTokens / 2) + 2), all = shared.all[warp][page][g];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float2 dots = multiply(weights, nibbles, block, e.rank);
        const float2 v = {fmaf(scale, dots.x - bias, all) * inverse, fmaf(scale, dots.y - bias, all) * inverse};
        const int i = stage * kStage + page * kKvPageTokens + block * 8, own_token = i + 2 * t;
        if (g < p.group) {
          *reinterpret_cast<float2*>(scores + i) = v;
          if (own_token >= w.info.skip && own_token < w.info.n_now) take(stats, alpha, logs, v.x);
          if (own_token + 1 >= w.info.skip && own_token + 1 < w.info.n_now) take(stats, alpha, logs, v.y);
        }
      }
    }
    __syncwarp();
    fetch(w, e.bytes, stage + kRing * n_warps, shared_address(own + k * bytes));
  }
  reduce(stats, alpha);
  if (t == 0 && g < p.group)
    p.partial[(static_cast<std::int64_t>(item) * p.group + g) * p.max_parts + part] = {stats.max, stats.sum, stats.min,
                                                                                       0};
  if (blockIdx.x == 0 && threadIdx.x == 0) p.n_parts[item] = n_warps;
  copy_async_wait<0>();
}

template <int kDim>
void scan_as(const Args& a, const CudaContext& context) {
  static std::size_t allowed = kDefaultSharedBytes;
  const std::size_t bytes =
      static_cast<std::size_t>(kScanWarps * kRing * stage_bytes(a.s.entries.bytes) + a.group * Shape<kDim>::kRow * 4);
  allow_shared(scan_kernel<kDim>, bytes, allowed, "the shared memory of a scan of sketches");
  const int items = a.rows.n * a.s.n_kv_heads, stages = static_cast<int>(a.width) / kStage;
  const int blocks = std::clamp(2 * sm_count() / items, 1, std::max(1, stages / kScanWarps));
  launch(context, "scan_sketches", scan_kernel<kDim>, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(items)),
         dim3(kThreads), bytes, a);
}

}  // namespace

void cuda::tokens::scan_sketches(const Args& a, const CudaContext& context) {
  a.s.head_dim == 128 ? scan_as<128>(a, context) : scan_as<64>(a, context);
}

}  // namespace mneme
