// One thread block builds one entry of one KV head, a thread per channel. Keys are in shared memory, a page at a time: read
// once, 16 bytes at a time, as they may be in host memory.
#include "src/selection/index/entry_build.cuh"
#include "src/selection/index/one_bit_cuda.cuh"
#include "src/selection/index/one_bit_cuda.h"
#include "src/selection/index/unit_entries_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kMaxThreads = kMaxSlotHeadDim, kTile = kKvPageTokens;
constexpr std::size_t kBehind = 4096;  // bytes that a scan of 1-bit keys reads after the last group
constexpr float kNan = __builtin_nanf("");

// Keys of an entry.   token: i -> address of its i-th token
template <typename T, typename F>
struct EntryKeys {
  using E = ReadAs<T>;
  int n, d;
  KvCodes codes;
  const F& token;
  E* tile;        // [kTile][d] in shared memory
  int held = -1;  // the tile's first token

  // Calls take(first, some) with tokens first .. first + some - 1 in the tile. Called by the whole block, which then
  // may read all of it.
  template <typename Take>
  __device__ __forceinline__ void each_tile(Take&& take) {
    for (int first = 0; first < n; first += kTile) {
      const int some = min(kTile, n - first), pieces = d / 8;
      if (first != held) {
        __syncthreads();
        for (int i = threadIdx.x; i < some * pieces; i += blockDim.x)
          reinterpret_cast<uint4*>(tile)[i] = KvRow<T>(token(first + i / pieces), d, codes).eight(i % pieces * 8);
        __syncthreads();
        held = first;
      }
      take(first, some);
    }
  }
  // Calls take(k) with the keys' values in the thread's channel, in order.
  template <typename Take>
  __device__ __forceinline__ void each(Take&& take) {
    each_tile([&](int, int some) {
      for (int t = 0; t < some && threadIdx.x < d; ++t) take(widen(tile[t * d + threadIdx.x]));
    });
  }
  // Stores a value of the thread's channel.
  template <typename To>
  __device__ __forceinline__ void put(To* to, float v) const {
    if (threadIdx.x < d) to[threadIdx.x] = narrow<To>(v);
  }
};

__device__ __forceinline__ float larger_of(float a, float b) {  // -0 below +0, as box_build_ref
  return a > b || (a == b && signbit(b)) ? a : b;
}
__device__ __forceinline__ float smaller_of(float a, float b) {
  return a < b || (a == b && signbit(a)) ? a : b;
}

template <typename Keys>
__device__ void build_box(bool cuboid, Keys& keys, typename Keys::E* entry) {
  float hi = -INFINITY, lo = INFINITY;
  bool nan = false;
  keys.each([&](float k) {
    nan = nan || isnan(k);
    hi = larger_of(hi, k), lo = smaller_of(lo, k);
  });
  if (cuboid) {
    const float centre = 0.5f * hi + 0.5f * lo;
    float distance = 0;
    keys.each([&](float k) { distance += fabsf(centre - k); });
    distance /= static_cast<float>(keys.n);
    hi = centre + distance, lo = centre - distance;
  }
  keys.put(entry, nan ? kNan : hi);
  keys.put(entry + keys.d, nan ? kNan : lo);
}

template <typename Keys>
__device__ void build_centroid(Keys& keys, typename Keys::E* entry) {
  float sum = 0;
  keys.each([&](float k) { sum += k; });
  keys.put(entry, sum / static_cast<float>(keys.n));
}

struct Levels {
  float z, s;  // as stored, before steps are rounded; NaN where a key is not finite
};
template <typename Keys>
__device__ Levels one_bit_levels(bool mean_abs, Keys& keys) {
  float hi = -INFINITY, lo = INFINITY, sum = 0, distance = 0;
  bool finite = true;
  keys.each([&](float k) {
    finite = finite && isfinite(k);
    hi = fmaxf(hi, k), lo = fminf(lo, k), sum += k;
  });
  const auto round = [](float v) { return widen(narrow<__nv_bfloat16>(v)); };
  const auto n = static_cast<float>(keys.n);
  // Halves first: the sum of two large keys would overflow.
  const float z = round(mean_abs ? sum / n : 0.5f * hi + 0.5f * lo);
  if (mean_abs) keys.each([&](float k) { distance += fabsf(k - z); });
  if (!finite) return {kNan, kNan};
  return {z, round(mean_abs ? distance / n : 0.5f * hi - 0.5f * lo)};
}

// one_bit_round_steps() of a step; largest: of the group's finite steps.
__device__ __forceinline__ float rounded_step(float s, float largest) {
  if (!isfinite(s) || largest == 0) return s;
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127, unit = max(exponent - 7, -126);
  return rintf(s * power_of_two(-unit)) * power_of_two(unit);
}

// Bits of a tile's tokens as one_bit.h has them, [D / 4][n] nibbles: one byte of two tokens a thread.
//   set: (token, channel) -> whether the key is at least its zero point; NaN: not
template <typename Set>
__device__ __forceinline__ void put_nibbles(int n, int d, int first, int some, std::byte* bits, Set&& set) {
  for (int at = threadIdx.x; at < d / 4 * some / 2; at += blockDim.x) {
    const int row = at / (some / 2), token = at % (some / 2) * 2;
    unsigned byte = 0;
    for (int i = 0; i < 8; ++i) byte |= (set(token + i / 4, 4 * row + i % 4) ? 1u : 0u) << i;
    bits[(row * n + first + token) / 2] = static_cast<std::byte>(byte);
  }
}
// The same as a scan reads them (one_bit_cuda.cuh), inverted: a thread has one word of a page's D.
template <typename Set>
__device__ __forceinline__ void put_fragments(int d, std::byte* codes, Set&& set) {
  const int pairs = d / 8, per_word = 16 / pairs, words = 4 / per_word;
  for (int at = threadIdx.x; at < d; at += blockDim.x) {
    const int lane = at / words, g = lane / 4, t = lane % 4;
    std::uint32_t word = 0;
    for (int p = 0; p < 32; ++p) {
      const int n = at % words * per_word + p % 16 / pairs, j = p % 16 % pairs;
      word |= (set(g + 8 * n, 32 * (j / 4) + 8 * t + 2 * (j % 4) + p / 16) ? 0u : 1u) << p;
    }
    reinterpret_cast<std::uint32_t*>(codes)[at] = word;
  }
}

// 1-bit keys of a group; codes: where a scan reads them, or null.
template <typename Keys>
__device__ void build_one_bit(bool mean_abs, Keys& keys, __nv_bfloat16* level, std::byte* bits, std::byte* codes) {
  __shared__ unsigned largest;  // of the finite steps, as bits: steps are not negative
  const int d = keys.d;
  if (threadIdx.x == 0) largest = 0;
  const Levels l = one_bit_levels(mean_abs, keys);
  if (threadIdx.x < d && isfinite(l.s)) atomicMax(&largest, __float_as_uint(l.s));
  __syncthreads();
  keys.put(level, l.z);
  keys.put(level + d, rounded_step(l.s, __uint_as_float(largest)));
  __syncthreads();
  keys.each_tile([&](int first, int some) {
    const auto set = [&](int token, int channel) {
      return widen(keys.tile[token * d + channel]) >= widen(level[channel]);
    };
    if (codes != nullptr) {
      put_fragments(d, codes + first / kTile * 4 * d, set);
    } else {
      put_nibbles(keys.n, d, first, some, bits, set);
    }
  });
}

template <typename T>
struct BuildUnit {
  static constexpr int kThreads = kMaxThreads;
  template <typename F>
  static __device__ void build(const DeviceCache& s, std::int64_t index, int number, int n, F&& token) {
    using E = ReadAs<T>;
    __shared__ alignas(16) E tile[kTile * kMaxSlotHeadDim];
    const UnitEntries& e = s.index.entries;
    EntryKeys<T, F> keys{n, s.head_dim, s.codes, token, tile};
    const bool mean_abs = e.kind == EntryKind::kOneBitMeanAbs;
    if (s.index.keys.codes != nullptr) {
      auto* level = reinterpret_cast<__nv_bfloat16*>(levels_of(s, index, number));
      build_one_bit(mean_abs, keys, level, nullptr, codes_of(s, index, number * (e.tokens / kKvPageTokens)));
      return;
    }
    std::byte* entry = e.data + (index * e.most + number) * static_cast<std::int64_t>(e.bytes);
    if (is_one_bit(e.kind)) {
      build_one_bit(mean_abs, keys, reinterpret_cast<__nv_bfloat16*>(entry), entry + 4 * s.head_dim, nullptr);
    } else if (e.kind == EntryKind::kCentroid) {
      build_centroid(keys, reinterpret_cast<E*>(entry));
    } else {
      build_box(e.kind == EntryKind::kCuboidBox, keys, reinterpret_cast<E*>(entry));
    }
  }
};

int threads_of(const DeviceCache& s) {
  return s.head_dim <= kMaxThreads / 2 ? kMaxThreads / 2 : kMaxThreads;
}

}  // namespace

std::size_t one_bit_code_bytes(const DeviceCache& s, std::size_t heads) {
  return heads * static_cast<std::size_t>(s.max_pages * s.box_bytes()) + kBehind;
}
std::size_t one_bit_level_bytes(const DeviceCache& s, std::size_t heads) {
  return heads * static_cast<std::size_t>(s.index.entries.most * s.box_bytes()) + kBehind;
}

void build_unit_entries_cuda(const BuildEntries& b, const DeviceCache& s, const KvTables& keys,
                             const CudaContext& context) {
  build_entries<BuildUnit>("build_unit_entries", {s, keys, b}, threads_of(s), 0, context);
}

void close_unit_entries_cuda(const CloseEntries& c, const DeviceCache& s, const KvTables& pages,
                             const CudaContext& context) {
  close_entries<BuildUnit>("close_unit_entries", {s, pages, c}, threads_of(s), 0, context);
}

}  // namespace mneme
