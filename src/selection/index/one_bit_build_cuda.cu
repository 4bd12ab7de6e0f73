// One warp per group. Lane l has the channels whose bits are bit l of a code's words, one word for each t, so that a
// ballot gives a word.
#include "src/kv/kv_codes.cuh"
#include "src/selection/index/entry_tokens.cuh"
#include "src/selection/index/one_bit_cuda.cuh"
#include "src/selection/index/one_bit_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kAtOnce = 8;             // tokens with loads in flight
constexpr std::size_t kBehind = 4096;  // bytes that a scan reads after the last group

// One warp's group of tokens; key_at(i): address of the i-th of them. A lane has channels `channel` + 8 t.
template <typename T, int kDim, typename KeyAt>
struct Group {
  using S = OneBitShape<kDim>;
  const DeviceCache& cache;
  const KeyAt& key_at;
  int channel, part;
  float z[4], s[4];

  __device__ __forceinline__ Group(const DeviceCache& of, const KeyAt& at) : cache(of), key_at(at) {
    const int lane = threadIdx.x % kWarp, position = lane % 16, j = position % S::kPairs;
    part = position / S::kPairs;
    channel = 32 * (j / 4) + 2 * (j % 4) + lane / 16;  // at t = 0
  }
  // Four channels of kN tokens, i-th: of token(i).
  template <int kN, typename Token>
  __device__ __forceinline__ void load(ReadAs<T> (&k)[kN][4], Token&& token) const {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const KvRow<T> key(key_at(token(i)), kDim, cache.codes);
#pragma unroll
      for (int t = 0; t < 4; ++t) k[i][t] = key[channel + 8 * t];
    }
  }
  template <typename Take>
  __device__ __forceinline__ void for_tokens(Take&& take) const {
#pragma unroll 1
    for (int first = 0; first < cache.index.group_tokens; first += kAtOnce) {
      ReadAs<T> k[kAtOnce][4];
      load(k, [&](int i) { return first + i; });
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int t = 0; t < 4; ++t) take(t, widen(k[i][t]));
    }
  }

  // Middles z and steps s of the group, NaN where a key is not finite.
  __device__ __forceinline__ void find_levels() {
    const bool mean_abs = cache.index.mean_abs;
    const auto n = static_cast<float>(cache.index.group_tokens);
    float most[4], least[4], sum[4], distance[4] = {0, 0, 0, 0};
    bool finite[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) most[t] = -INFINITY, least[t] = INFINITY, sum[t] = 0, finite[t] = true;
    for_tokens([&](int t, float k) {
      most[t] = fmaxf(most[t], k), least[t] = fminf(least[t], k), sum[t] += k;
      finite[t] = finite[t] && isfinite(k);
    });
#pragma unroll
    for (int t = 0; t < 4; ++t)
      z[t] = widen(narrow<__nv_bfloat16>(mean_abs ? sum[t] / n : (most[t] + least[t]) * 0.5f));
    if (mean_abs) for_tokens([&](int t, float k) { distance[t] += fabsf(k - z[t]); });
    float largest = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      s[t] = widen(narrow<__nv_bfloat16>(mean_abs ? distance[t] / n : (most[t] - least[t]) * 0.5f));
      if (finite[t] && isfinite(s[t])) largest = fmaxf(largest, s[t]);
    }
#pragma unroll
    for (int d = kWarp / 2; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
    // one_bit_round_steps. Subnormal steps are multiples of the unit already.
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127, exponent8 = max(exponent - 7, -126);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (largest > 0 && isfinite(s[t])) s[t] = rintf(s[t] * power_of_two(-exponent8)) * power_of_two(exponent8);
      if (!finite[t]) z[t] = s[t] = __int_as_float(0x7fc00000);
    }
  }
  __device__ __forceinline__ void write_levels(std::byte* levels) const {
    auto* level = reinterpret_cast<__nv_bfloat16*>(levels);
    if (part != 0) return;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      level[channel + 8 * t] = narrow<__nv_bfloat16>(z[t]);
      level[kDim + channel + 8 * t] = narrow<__nv_bfloat16>(s[t]);
    }
  }
  __device__ __forceinline__ void write_codes(std::byte* codes) const {
    const int lane = threadIdx.x % kWarp;
    for (int page = 0; page < cache.index.group_tokens / kKvPageTokens; ++page) {
      std::uint32_t own[S::kWords];
#pragma unroll
      for (int w = 0; w < S::kWords; ++w) {
        ReadAs<T> k[8][4];
        load(k, [&](int g) { return page * kKvPageTokens + g + 8 * (w * S::kPerWord + part); });
#pragma unroll
        for (int g = 0; g < 8; ++g)
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            const std::uint32_t word = __ballot_sync(~0u, !(widen(k[g][t]) >= z[t]));
            if (lane == 4 * g + t) own[w] = word;
          }
      }
      auto* to = reinterpret_cast<std::uint32_t*>(codes + page * S::kBlockBytes) + lane * S::kWords;
#pragma unroll
      for (int w = 0; w < S::kWords; ++w) to[w] = own[w];
    }
  }
};

template <typename T, int kDim, typename KeyAt>
__device__ void build_group(const DeviceCache& cache, const KeyAt& key_at, std::byte* levels, std::byte* codes) {
  Group<T, kDim, KeyAt> group(cache, key_at);
  group.find_levels();
  group.write_levels(levels);
  group.write_codes(codes);
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim == 64 ? 3 : 2) build_kernel(BuildArgs p) {
  const int kv_head = blockIdx.y, group = p.b.first + blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (group >= p.b.stop) return;
  const std::int64_t index = p.index(kv_head);
  const int first = group * p.s.index.group_tokens;
  build_group<T, kDim>(
      p.s, [&](int i) { return p.token(kv_head, first + i); }, levels_of(p.s, index, group),
      codes_of(p.s, index, first / kKvPageTokens));
}

// One warp per (row, layer, KV head).
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) close_kernel(CloseArgs p) {
  grid_dependency_wait();
  const int heads = p.s.n_kv_heads, layers = p.c.stop - p.c.first;
  const int item = blockIdx.x * kWarps + threadIdx.x / kWarp, row = item / (layers * heads);
  if (row >= p.c.rows.n || !ClosedEntry::is_closed(p, row, p.s.index.group_tokens)) return;
  const ClosedEntry e(p, row, p.c.first + item / heads % layers, item % heads, p.s.index.group_tokens);
  build_group<T, kDim>(
      p.s, [&](int i) { return e.token(i); }, levels_of(p.s, e.index, e.first / p.s.index.group_tokens),
      codes_of(p.s, e.index, e.first / kKvPageTokens));
}

}  // namespace

std::size_t one_bit_code_bytes(const DeviceCache& s, std::size_t heads) {
  return heads * static_cast<std::size_t>(s.max_pages) * s.box_bytes() + kBehind;
}
std::size_t one_bit_level_bytes(const DeviceCache& s, std::size_t heads) {
  return heads * static_cast<std::size_t>(one_bit_groups(s)) * s.box_bytes() + kBehind;
}

void build_one_bit_cuda(const BuildEntries& b, const DeviceCache& s, const KvTables& keys, const CudaContext& context) {
  if (b.stop <= b.first) return;
  const dim3 grid(static_cast<unsigned>((b.stop - b.first + kWarps - 1) / kWarps), static_cast<unsigned>(s.n_kv_heads));
  const auto run = [&](void (*kernel)(BuildArgs)) {
    launch(context, "build_one_bit", kernel, grid, dim3(kThreads), 0, BuildArgs{s, keys, b});
  };
  with_kv_type(s, [&]<typename T>(T) { run(s.head_dim == 128 ? build_kernel<T, 128> : build_kernel<T, 64>); });
}

void close_one_bit_cuda(const CloseEntries& c, const DeviceCache& s, const KvTables& pages,
                        const CudaContext& context) {
  const int items = c.rows.n * (c.stop - c.first) * s.n_kv_heads;
  const auto run = [&](void (*kernel)(CloseArgs)) {
    launch(context, "close_one_bit", kernel, dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), dim3(kThreads),
           0, CloseArgs{s, pages, c});
  };
  with_kv_type(s, [&]<typename T>(T) { run(s.head_dim == 128 ? close_kernel<T, 128> : close_kernel<T, 64>); });
}

}  // namespace mneme
