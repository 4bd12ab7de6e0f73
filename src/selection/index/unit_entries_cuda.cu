// One thread block builds one entry of one KV head, a thread per channel. Entries are built once, a few at a time: what
// counts is that every kind, size and head size is right.
#include "src/cuda/common.cuh"
#include "src/kv/kv_codes.cuh"
#include "src/offload/device_cache_cuda.cuh"
#include "src/selection/index/entry_tokens.cuh"
#include "src/selection/index/unit_entries_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 128;
constexpr float kNan = __builtin_nanf("");

__device__ __forceinline__ float larger_of(float a, float b) {  // -0 below +0, as box_build_ref
  return a > b || (a == b && signbit(b)) ? a : b;
}
__device__ __forceinline__ float smaller_of(float a, float b) {
  return a < b || (a == b && signbit(a)) ? a : b;
}

// Box of one channel.   key: i -> the i-th key's value
template <typename T, typename F>
__device__ void build_box(bool cuboid, int n, int d, int channel, T* entry, F&& key) {
  float hi = -INFINITY, lo = INFINITY;
  bool nan = false;
  for (int i = 0; i < n; ++i) {
    const float k = key(i);
    nan = nan || isnan(k);
    hi = larger_of(hi, k), lo = smaller_of(lo, k);
  }
  if (cuboid) {
    const float centre = 0.5f * hi + 0.5f * lo;
    float distance = 0;
    for (int i = 0; i < n; ++i) distance += fabsf(centre - key(i));
    distance /= static_cast<float>(n);
    hi = centre + distance, lo = centre - distance;
  }
  entry[channel] = narrow<T>(nan ? kNan : hi);
  entry[d + channel] = narrow<T>(nan ? kNan : lo);
}

template <typename T, typename F>
__device__ void build_centroid(int n, int channel, T* entry, F&& key) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += key(i);
  entry[channel] = narrow<T>(sum / static_cast<float>(n));
}

struct Levels {
  float z, s;  // as stored, before steps are rounded; NaN where a key is not finite
};
template <typename F>
__device__ Levels one_bit_levels(bool mean_abs, int n, F&& key) {
  float hi = -INFINITY, lo = INFINITY, sum = 0, distance = 0;
  bool finite = true;
  for (int i = 0; i < n; ++i) {
    const float k = key(i);
    finite = finite && isfinite(k);
    hi = fmaxf(hi, k), lo = fminf(lo, k), sum += k;
  }
  if (!finite) return {kNan, kNan};
  const auto round = [](float v) { return widen(narrow<__nv_bfloat16>(v)); };
  // Halves first: the sum of two large keys would overflow.
  const float z = round(mean_abs ? sum / static_cast<float>(n) : 0.5f * hi + 0.5f * lo);
  for (int i = 0; mean_abs && i < n; ++i) distance += fabsf(key(i) - z);
  return {z, round(mean_abs ? distance / static_cast<float>(n) : 0.5f * hi - 0.5f * lo)};
}

// one_bit_round_steps() of a step; largest: of the group's finite steps.
__device__ __forceinline__ float rounded_step(float s, float largest) {
  if (!isfinite(s) || largest == 0) return s;
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127, unit = max(exponent - 7, -126);
  return rintf(s * power_of_two(-unit)) * power_of_two(unit);
}

// 1-bit keys of a group by a whole thread block.   key: (channel, i) -> the i-th key's value
template <typename F>
__device__ void build_one_bit(bool mean_abs, int n, int d, std::byte* entry, F&& key) {
  __shared__ unsigned largest;  // of the finite steps, as bits: steps are not negative
  auto* level = reinterpret_cast<__nv_bfloat16*>(entry);
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += kThreads) {
    const Levels l = one_bit_levels(mean_abs, n, [&](int i) { return key(c, i); });
    level[c] = narrow<__nv_bfloat16>(l.z), level[d + c] = narrow<__nv_bfloat16>(l.s);
    if (isfinite(l.s)) atomicMax(&largest, __float_as_uint(l.s));
  }
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += kThreads)
    level[d + c] = narrow<__nv_bfloat16>(rounded_step(widen(level[d + c]), __uint_as_float(largest)));
  __syncthreads();
  // Bits: [D / 4][n] nibbles, one byte of two tokens a thread.
  auto* bits = reinterpret_cast<std::uint8_t*>(entry + 4 * d);
  for (int at = threadIdx.x; at < d / 4 * n / 2; at += kThreads) {
    const int row = at / (n / 2), first = at % (n / 2) * 2;
    unsigned byte = 0;
    for (int t = 0; t < 2; ++t)
      for (int c = 0; c < 4; ++c) {
        const bool set = key(4 * row + c, first + t) >= widen(level[4 * row + c]);  // NaN: not set
        byte |= (set ? 1u : 0u) << (4 * t + c);
      }
    bits[at] = static_cast<std::uint8_t>(byte);
  }
}

// Entry `number` of a KV head.   token: i -> address of the entry's i-th token
template <typename T, typename F>
__device__ void build_entry(const DeviceCache& s, std::int64_t index, int number, F&& token) {
  const UnitEntries& e = s.index.entries;
  std::byte* entry = e.data + (index * e.most + number) * static_cast<std::int64_t>(e.bytes);
  using E = ReadAs<T>;
  const auto key = [&](int c, int i) { return widen(KvRow<T>(token(i), s.head_dim, s.codes)[c]); };
  if (e.kind == EntryKind::kOneBitMinMax || e.kind == EntryKind::kOneBitMeanAbs) {
    build_one_bit(e.kind == EntryKind::kOneBitMeanAbs, e.tokens, s.head_dim, entry, key);
    return;
  }
  for (int c = threadIdx.x; c < s.head_dim; c += kThreads) {
    const auto of_channel = [&](int i) { return key(c, i); };
    if (e.kind == EntryKind::kCentroid) {
      build_centroid(e.tokens, c, reinterpret_cast<E*>(entry), of_channel);
    } else {
      build_box(e.kind == EntryKind::kCuboidBox, e.tokens, s.head_dim, c, reinterpret_cast<E*>(entry), of_channel);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) build_kernel(BuildArgs p) {
  const int kv_head = blockIdx.y, number = p.b.first + blockIdx.x, tokens = p.s.index.entries.tokens;
  build_entry<T>(p.s, p.index(kv_head), number, [&](int i) { return p.token(kv_head, number * tokens + i); });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) close_kernel(CloseArgs p) {
  launch_dependents();
  grid_dependency_wait();
  const int tokens = p.s.index.entries.tokens;
  if (!ClosedEntry::is_closed(p, blockIdx.x, tokens)) return;
  const ClosedEntry e(p, blockIdx.x, p.c.first + static_cast<int>(blockIdx.z), blockIdx.y, tokens);
  build_entry<T>(p.s, e.index, e.first / tokens, [&](int i) { return e.token(i); });
}

}  // namespace

std::int32_t unit_entry_bytes(EntryKind kind, std::int32_t head_dim, std::int32_t tokens) {
  switch (kind) {
    case EntryKind::kNone:
    case EntryKind::kCentroidSet:  // summary_entry_bytes()
    case EntryKind::kSketch:
    case EntryKind::kMoments:
      return 0;
    case EntryKind::kMinMaxBox:
    case EntryKind::kCuboidBox:
      return 4 * head_dim;
    case EntryKind::kCentroid:
      return 2 * head_dim;
    case EntryKind::kOneBitMinMax:
    case EntryKind::kOneBitMeanAbs:
      return head_dim * (4 + tokens / 8);
  }
  return 0;
}

void build_unit_entries_cuda(const BuildEntries& b, const DeviceCache& s, const KvTables& keys,
                             const CudaContext& context) {
  if (b.stop <= b.first) return;
  with_kv_type(s, [&]<typename T>(T) {
    launch(context, "build_unit_entries", build_kernel<T>,
           dim3(static_cast<unsigned>(b.stop - b.first), static_cast<unsigned>(s.n_kv_heads)), dim3(kThreads), 0,
           BuildArgs{s, keys, b});
  });
}

void close_unit_entries_cuda(const CloseEntries& c, const DeviceCache& s, const KvTables& pages,
                             const CudaContext& context) {
  if (c.rows.n == 0) return;
  with_kv_type(s, [&]<typename T>(T) {
    launch(context, "close_unit_entries", close_kernel<T>,
           dim3(static_cast<unsigned>(c.rows.n), static_cast<unsigned>(s.n_kv_heads),
                static_cast<unsigned>(c.stop - c.first)),
           dim3(kThreads), 0, CloseArgs{s, pages, c});
  });
}

}  // namespace mneme
