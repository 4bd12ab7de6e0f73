#include "src/ops/gemm/device/weight_layout_cuda.h"

#include <type_traits>

#include "src/cuda/common.cuh"
#include "src/ops/gemm/device/weight_format.cuh"
#include "src/ops/gemm/quant.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256;
constexpr float kStandardDeviation = 0.02f;

// ---- a checkpoint's blocks (src/ops/gemm/quant.h): the code of value i, as an unsigned number, and what scales it

__device__ __forceinline__ int nibble_of(const std::uint8_t* q, int i) {
  return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}
// P of quant.h, W, and the bits above.
__device__ __forceinline__ int two_bits(const std::uint8_t* q, int i) {
  return q[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
}
__device__ __forceinline__ int four_bits(const std::uint8_t* q, int i) {
  return q[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15;
}

template <typename Block>
__device__ __forceinline__ int code_of(const Block& b, int i) {
  if constexpr (std::is_same_v<Block, BlockQ8_0> || std::is_same_v<Block, BlockInt8>) {
    return static_cast<std::uint8_t>(b.q[i]);
  } else if constexpr (std::is_same_v<Block, BlockFp8>) {
    return b.q[i];
  } else if constexpr (std::is_same_v<Block, BlockQ5_0> || std::is_same_v<Block, BlockQ5_1>) {
    return nibble_of(b.q, i) | (b.h[i / 8] >> (i % 8) & 1) << 4;
  } else if constexpr (std::is_same_v<Block, BlockQ2_K>) {
    return two_bits(b.q, i);
  } else if constexpr (std::is_same_v<Block, BlockQ3_K>) {
    return two_bits(b.q, i) | (b.h[i % 32] >> (i / 32) & 1) << 2;
  } else if constexpr (std::is_same_v<Block, BlockQ4_K>) {
    return four_bits(b.q, i);
  } else if constexpr (std::is_same_v<Block, BlockQ5_K>) {
    return four_bits(b.q, i) | (b.h[i % 32] >> (i / 32) & 1) << 4;
  } else if constexpr (std::is_same_v<Block, BlockQ6_K>) {
    const int r = i % 128;
    return (b.l[64 * (i / 128) + r % 64] >> (r < 64 ? 0 : 4) & 15) |
           (b.h[32 * (i / 128) + r % 32] >> (2 * (r / 32)) & 3) << 4;
  } else if constexpr (std::is_same_v<Block, BlockIQ4_XS> || std::is_same_v<Block, BlockNVFP4>) {
    return nibble_of(b.q + 16 * (i / 32), i % 32);
  } else {
    return nibble_of(b.q, i);
  }
}

// Writes the scales of a row's chunk: `blocks` of it, the rest is zero. `to` is the chunk's scale area.
template <typename Block>
__device__ void put_scales(const Block* blocks, int n_blocks, int g, std::uint8_t* to) {
  auto* halves = reinterpret_cast<std::uint16_t*>(to);
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  const auto bits = [](const auto& half) { return half.bits; };
  if constexpr (sizeof(Block) > sizeof(BlockFp8)) {
    const Block& b = *blocks;
    if constexpr (std::is_same_v<Block, BlockQ4_K> || std::is_same_v<Block, BlockQ5_K>) {
      words[g] = bits(b.d) | static_cast<std::uint32_t>(bits(b.dmin)) << 16;
      for (int j = 0; j < 8; ++j) {
        const int scale = j < 4 ? b.s[j] & 63 : (b.s[j + 4] & 15) + 16 * (b.s[j - 4] >> 6);
        const int minimum = j < 4 ? b.s[j + 4] & 63 : (b.s[j + 4] >> 4) + 16 * (b.s[j] >> 6);
        to[32 + j / 4 * 32 + g * 4 + j % 4] = static_cast<std::uint8_t>(scale);
        to[96 + j / 4 * 32 + g * 4 + j % 4] = static_cast<std::uint8_t>(minimum);
      }
    } else if constexpr (std::is_same_v<Block, BlockQ2_K>) {
      words[g] = bits(b.d) | static_cast<std::uint32_t>(bits(b.dmin)) << 16;
      for (int j = 0; j < 16; ++j) to[32 + j / 8 * 64 + g * 8 + j % 8] = b.s[j];
    } else if constexpr (std::is_same_v<Block, BlockIQ4_XS>) {
      halves[g] = bits(b.d);
      for (int j = 0; j < 8; ++j) {
        const int scale = (b.s[j / 2] >> (4 * (j % 2)) & 15) + 16 * (b.u >> (2 * j) & 3) - 32;
        to[16 + j / 4 * 32 + g * 4 + j % 4] = static_cast<std::uint8_t>(scale + 128);
      }
    } else {
      halves[g] = bits(b.d);
      for (int j = 0; j < 16; ++j) {
        int scale = 0;
        if constexpr (std::is_same_v<Block, BlockQ3_K>) {
          scale = (j < 8 ? b.s[j] & 15 : b.s[j - 8] >> 4) + 16 * (b.s[8 + j % 4] >> (2 * (j / 4)) & 3) - 32;
        } else {
          scale = b.s[j];
        }
        to[16 + j / 8 * 64 + g * 8 + j % 8] = static_cast<std::uint8_t>(scale + 128);
      }
    }
  } else if constexpr (std::is_same_v<Block, BlockNVFP4>) {
    words[g] = __float_as_uint(0.5f * blocks->d);  // as nvfp4_scale()
    for (int j = 0; j < 16; ++j) to[32 + j / 8 * 64 + g * 8 + j % 8] = j / 4 < n_blocks ? blocks[j / 4].s[j % 4] : 0;
  } else if constexpr (std::is_same_v<Block, BlockFp8>) {
    for (int j = 0; j < 2; ++j) words[2 * g + j] = j < n_blocks ? __float_as_uint(blocks[j].d) : 0;
  } else {
    for (int j = 0; j < 4; ++j) {
      const bool there = j < n_blocks;
      if constexpr (std::is_same_v<Block, BlockMXFP4>) {
        to[4 * g + j] = there ? blocks[j].e : 0;
      } else if constexpr (std::is_same_v<Block, BlockInt8>) {
        words[4 * g + j] = there ? __float_as_uint(blocks[j].d) : 0;
      } else if constexpr (std::is_same_v<Block, BlockInt4>) {
        words[4 * g + j] = there ? blocks[j].scale_and_zero : 0;
      } else if constexpr (std::is_same_v<Block, BlockQ4_1> || std::is_same_v<Block, BlockQ5_1>) {
        words[4 * g + j] = there ? bits(blocks[j].d) | static_cast<std::uint32_t>(bits(blocks[j].m)) << 16 : 0;
      } else {
        halves[4 * g + j] = there ? bits(blocks[j].d) : 0;
      }
    }
  }
}

template <DType kType>
struct BlockOf;
#define MNEME_BLOCK(type, Block_, Format_) \
  template <>                              \
  struct BlockOf<DType::type> {            \
    using Block = Block_;                  \
    using Format = Format_;                \
  };
MNEME_BLOCK(kQ8_0, BlockQ8_0, Q8_0Format)
MNEME_BLOCK(kQ4_0, BlockQ4_0, Q4_0Format)
MNEME_BLOCK(kQ4_1, BlockQ4_1, Q4_1Format)
MNEME_BLOCK(kQ5_0, BlockQ5_0, Q5_0Format)
MNEME_BLOCK(kQ5_1, BlockQ5_1, Q5_1Format)
MNEME_BLOCK(kQ2_K, BlockQ2_K, Q2KFormat)
MNEME_BLOCK(kQ3_K, BlockQ3_K, Q3KFormat)
MNEME_BLOCK(kQ4_K, BlockQ4_K, Q4KFormat)
MNEME_BLOCK(kQ5_K, BlockQ5_K, Q5KFormat)
MNEME_BLOCK(kQ6_K, BlockQ6_K, Q6KFormat)
MNEME_BLOCK(kIQ4_NL, BlockIQ4_NL, Iq4NlFormat)
MNEME_BLOCK(kIQ4_XS, BlockIQ4_XS, Iq4XsFormat)
MNEME_BLOCK(kMXFP4, BlockMXFP4, Mxfp4Format)
MNEME_BLOCK(kNVFP4, BlockNVFP4, Nvfp4Format)
MNEME_BLOCK(kFp8, BlockFp8, Fp8Format)
MNEME_BLOCK(kInt4, BlockInt4, Int4Format)
MNEME_BLOCK(kInt8, BlockInt8, Int8Format)
#undef MNEME_BLOCK

template <typename Block>
constexpr int kBlockValues = sizeof(Block) > sizeof(BlockFp8)    ? kSuperBlock
                             : std::is_same_v<Block, BlockFp8>   ? kFp8Block
                             : std::is_same_v<Block, BlockNVFP4> ? kNvfp4Block
                                                                 : kQuantBlock;

// Rows that a kernel converts: [first, first + n) of a matrix with `chunks` chunks a row.
struct RepackTask {
  const std::byte* blocks;
  std::byte* to;
  std::int64_t first, n, n_in, chunks, octet_bytes;
};

// The column, within its step of 32, of value e of lane 4 g + t.
template <typename F>
__device__ __forceinline__ int column_of(int t, int e) {
  return F::kPer16 ? e / 4 * 16 + 4 * t + e % 4 : 8 * t + e;
}

// One thread per row, chunk and t: the codes of a lane, and with t = 0 the row's scales.
template <typename Block, typename F>
__global__ void repack(RepackTask r) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= r.n * r.chunks * 4) return;
  const int t = static_cast<int>(at % 4);
  const std::int64_t chunk = at / 4 % r.chunks, row = at / 4 / r.chunks, there = r.n_in / kBlockValues<Block>;
  const int g = static_cast<int>((r.first + row) % 8), lane = 4 * g + t;
  constexpr int kColumns = F::kSlabs * static_cast<int>(kSlab), kBlocks = kColumns / kBlockValues<Block>;
  const Block* blocks = reinterpret_cast<const Block*>(r.blocks) + row * there + chunk * kBlocks;
  const int n_blocks = static_cast<int>(min(std::int64_t{kBlocks}, there - chunk * kBlocks));
  auto* to = reinterpret_cast<std::uint8_t*>(r.to) + (r.first + row) / 8 * r.octet_bytes + chunk * F::kChunkBytes;
  for (int slab = 0; slab < F::kSlabs; ++slab) {
    auto* main = reinterpret_cast<std::uint32_t*>(to + slab * F::kSlabBytes);
    auto* high = main + F::kMainWords * kWarp;
    std::uint32_t words[8] = {}, above[2] = {};
    for (int step = 0; step < 4; ++step)
      for (int e = 0; e < 8; ++e) {
        const int column = slab * static_cast<int>(kSlab) + step * 32 + column_of<F>(t, e);
        const int block = column / kBlockValues<Block>;
        if (block >= n_blocks) continue;
        const auto code = static_cast<std::uint32_t>(code_of(blocks[block], column % kBlockValues<Block>));
        const int two = step % 2 * 8 + e / 2 * 2 + e % 2 * 16, one = step * 4 + e / 2 + e % 2 * 16;
        if constexpr (F::kCode == Code::kFp8) {
          words[2 * step + e / 4] |= pack_fp8(code, e % 4);
        } else if constexpr (F::kMainWords == 8) {
          words[2 * step + e / 4] |= code << (e % 4 / 2 * 8 + e % 2 * 16);
        } else if constexpr (F::kMainWords == 2) {
          words[step / 2] |= (code & 3) << two;
          above[0] |= code >> 2 << one;
        } else if constexpr (F::kCode == Code::kIq4 || F::kCode == Code::kFp4) {
          words[step] |= code << (4 * e);
        } else {
          words[step] |= (code & 15) << (4 * (e % 2 * 4 + e / 2));
          if constexpr (F::kCode == Code::k5) above[0] |= code >> 4 << one;
          if constexpr (F::kCode == Code::k6) above[step / 2] |= code >> 4 << two;
        }
      }
    for (int i = 0; i < F::kMainWords; ++i)
      main[F::kMainWords == 2 ? lane * 2 + i : i / 4 * 4 * kWarp + lane * 4 + i % 4] = words[i];
    for (int i = 0; i < F::kHighWords; ++i) high[lane * F::kHighWords + i] = above[i];
  }
  if (t == 0) put_scales(blocks, n_blocks, g, to + F::kSlabs * F::kSlabBytes);
}

template <typename T>
__global__ void convert(const T* from, std::int64_t n, __nv_bfloat16* to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) to[i] = __float2bfloat16_rn(widen(from[i]));
}

__device__ __forceinline__ float2 floats_of(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

// A lane's eight values of a step as bf16.
template <typename F, int kStep>
__device__ __forceinline__ uint4 values_of(const Codes<F>& codes, const Scales<F>& scales) {
  std::uint32_t pairs[4], out[4];
  codes.template unpack<kStep>(pairs);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 code = floats_of(pairs[i]);
    if (i < 2) {
      out[i] = pack<__nv_bfloat16>(scales.template value<kStep, 0>(code.x), scales.template value<kStep, 0>(code.y));
    } else {
      out[i] = pack<__nv_bfloat16>(scales.template value<kStep, 1>(code.x), scales.template value<kStep, 1>(code.y));
    }
  }
  return {out[0], out[1], out[2], out[3]};
}

template <typename F, int kStep>
__device__ __forceinline__ void put_step(const Codes<F>& codes, const Scales<F>& scales, std::int64_t left,
                                         __nv_bfloat16* out) {
  if (kStep * 32 >= left) return;
  const int t = threadIdx.x % 4;
  const uint4 v = values_of<F, kStep>(codes, scales);
  if constexpr (F::kPer16) {
    *reinterpret_cast<uint2*>(out + kStep * 32 + 4 * t) = {v.x, v.y};
    *reinterpret_cast<uint2*>(out + kStep * 32 + 16 + 4 * t) = {v.z, v.w};
  } else {
    *reinterpret_cast<uint4*>(out + kStep * 32 + 8 * t) = v;
  }
}

struct DequantiseTask {
  const std::byte* from;
  std::int64_t n, n_in, octets, slabs, octet_bytes;
  __nv_bfloat16* out;
};

// One warp per octet and slab.
template <typename F>
__global__ void __launch_bounds__(kThreads) dequantise(DequantiseTask r) {
  const std::int64_t warp = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (warp >= r.octets * r.slabs) return;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t octet = warp / r.slabs, slab = warp % r.slabs, row = octet * 8 + lane / 4;
  const int sub = static_cast<int>(slab % F::kSlabs);
  const GlobalWords chunk{r.from + octet * r.octet_bytes + slab / F::kSlabs * F::kChunkBytes};
  Codes<F> codes;
  Scales<F> scales;
  codes.load(chunk.at(sub * F::kSlabBytes), lane);
  scales.load(chunk.at(F::kSlabs * F::kSlabBytes), sub, lane / 4);
  if (row >= r.n) return;
  __nv_bfloat16* out = r.out + row * r.n_in + slab * kSlab;
  const std::int64_t left = r.n_in - slab * kSlab;
  put_step<F, 0>(codes, scales, left, out);
  put_step<F, 1>(codes, scales, left, out);
  put_step<F, 2>(codes, scales, left, out);
  put_step<F, 3>(codes, scales, left, out);
}

__device__ __forceinline__ std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Two standard normals (Box-Muller).
__device__ __forceinline__ float2 normals(std::uint64_t seed, std::uint64_t i) {
  const std::uint64_t bits = mix(seed * 0x2545f4914f6cdd1dull + i);
  const float u = (static_cast<float>(bits >> 40) + 1.0f) * 0x1p-24f,
              v = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
  const float r = sqrtf(-2.0f * __logf(u));
  return {r * __cosf(6.2831853f * v), r * __sinf(6.2831853f * v)};
}

__global__ void random_bf16(std::uint64_t seed, std::int64_t pairs, __nv_bfloat162* out) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < pairs;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const float2 v = normals(seed, static_cast<std::uint64_t>(i));
    out[i] = __floats2bfloat162_rn(kStandardDeviation * v.x, kStandardDeviation * v.y);
  }
}

__global__ void random_words(std::uint64_t seed, std::int64_t words, std::uint32_t* out) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < words;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads)
    out[i] = static_cast<std::uint32_t>(mix(seed + static_cast<std::uint64_t>(i)));
}

// Constant scales: one thread per chunk and row.
struct RandomScales {
  float scale, minimum;  // of a code less the format's offset
  int small, small_min;  // the integers that multiply a super-block's scale and minimum
};
template <typename F>
__global__ void fill_scales(std::int64_t chunks, std::byte* values, RandomScales s) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= chunks * 8) return;
  const int g = static_cast<int>(at % 8);
  auto* to = reinterpret_cast<std::uint8_t*>(values) + at / 8 * F::kChunkBytes + F::kSlabs * F::kSlabBytes;
  const auto half = [](float v) { return std::uint32_t{__half_as_ushort(__float2half_rn(v))}; };
  auto* halves = reinterpret_cast<std::uint16_t*>(to);
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  const auto d = static_cast<float>(s.small), dmin = static_cast<float>(max(1, s.small_min));
  if constexpr (F::kSlabs == 2) {
    if constexpr (F::kMinimum) {
      words[g] = half(s.scale / d) | half(-s.minimum / dmin) << 16;
    } else if constexpr (F::kScale == Scale::kFloat16) {
      words[g] = __float_as_uint(s.scale);
    } else {
      halves[g] = static_cast<std::uint16_t>(half(s.scale / d));
    }
    constexpr int kHead = F::kHeadBytes, kSmall = F::kPer16 ? 8 : 4;
    for (int slab = 0; slab < 2; ++slab)
      for (int j = 0; j < kSmall; ++j) {
        std::uint8_t* byte = to + kHead + slab * 8 * kSmall + g * kSmall + j;
        if constexpr (F::kScale == Scale::kSuperMin16) {
          *byte = static_cast<std::uint8_t>(s.small | s.small_min << 4);
        } else if constexpr (F::kMinimum) {
          *byte = static_cast<std::uint8_t>(s.small);
          byte[64] = static_cast<std::uint8_t>(s.small_min);
        } else if constexpr (F::kScale == Scale::kFloat16) {
          *byte = 0x38;  // 1 in e4m3
        } else {
          *byte = static_cast<std::uint8_t>(s.small + 128);
        }
      }
  } else {
    for (int j = 0; j < 4; ++j) {
      if constexpr (F::kScale == Scale::kHalf) halves[4 * g + j] = static_cast<std::uint16_t>(half(s.scale));
      if constexpr (F::kScale == Scale::kHalfMin) words[4 * g + j] = half(s.scale) | half(s.minimum) << 16;
      if constexpr (F::kScale == Scale::kExponent) to[4 * g + j] = static_cast<std::uint8_t>(s.small);
      if constexpr (F::kScale == Scale::kFloat32) words[4 * g + j] = __float_as_uint(s.scale);
      if constexpr (F::kScale == Scale::kZero) words[4 * g + j] = (__float_as_uint(s.scale) & ~0xffu) | 8u;
      if constexpr (F::kScale == Scale::kFloat64)
        if (j < 2) words[2 * g + j] = __float_as_uint(s.scale);
    }
  }
}

// One thread block per row of ids.
__global__ void gather_columns(const __nv_bfloat16* x, std::int64_t n, std::int64_t k, const std::int32_t* columns,
                               __nv_bfloat16* out) {
  launch_dependents();
  grid_dependency_wait();
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i / k * k + columns[i % k]];
}

__global__ void read_bf16_rows(const __nv_bfloat16* w, const std::int32_t* ids, std::int64_t n_in, float* out) {
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t row = blockIdx.x;
  for (std::int64_t i = threadIdx.x; i < n_in; i += kThreads) out[row * n_in + i] = widen(w[ids[row] * n_in + i]);
}
template <typename F, int kStep>
__device__ __forceinline__ void put_floats(const Codes<F>& codes, const Scales<F>& scales, std::int64_t left,
                                           float* out) {
  if (kStep * 32 >= left) return;
  const int t = threadIdx.x % 4;
  std::uint32_t pairs[4];
  codes.template unpack<kStep>(pairs);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float2 both = floats_of(pairs[e / 2]);
    const float code = e % 2 == 0 ? both.x : both.y;
    out[kStep * 32 + column_of<F>(t, e)] =
        e < 4 ? scales.template value<kStep, 0>(code) : scales.template value<kStep, 1>(code);
  }
}
// One warp per slab, of whose octet four lanes have the row.
template <typename F>
__global__ void read_rows(const std::byte* w, const std::int32_t* ids, std::int64_t n_in, std::int64_t octet_bytes,
                          float* out) {
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t row = blockIdx.x, id = ids[row];
  const int lane = threadIdx.x % kWarp;
  for (std::int64_t slab = threadIdx.x / kWarp; slab * kSlab < n_in; slab += kThreads / kWarp) {
    const int sub = static_cast<int>(slab % F::kSlabs);
    const GlobalWords chunk{w + id / 8 * octet_bytes + slab / F::kSlabs * F::kChunkBytes};
    if (lane / 4 != id % 8) continue;
    Codes<F> codes;
    Scales<F> scales;
    codes.load(chunk.at(sub * F::kSlabBytes), lane);
    scales.load(chunk.at(F::kSlabs * F::kSlabBytes), sub, lane / 4);
    float* to = out + row * n_in + slab * kSlab;
    const std::int64_t left = n_in - slab * kSlab;
    put_floats<F, 0>(codes, scales, left, to);
    put_floats<F, 1>(codes, scales, left, to);
    put_floats<F, 2>(codes, scales, left, to);
    put_floats<F, 3>(codes, scales, left, to);
  }
}

dim3 blocks_for(std::int64_t n) {
  return dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads));
}

constexpr unsigned kManyBlocks = 1024;

}  // namespace

void repack_cuda(const std::byte* blocks, std::int64_t first, std::int64_t n, const DeviceMatrix& out,
                 const CudaContext& context) {
  const std::int64_t chunks = out.slabs() / weight_layout(out.dtype).slabs;
  const RepackTask rows{blocks, const_cast<std::byte*>(out.values),          first, n, out.n_in,
                        chunks, static_cast<std::int64_t>(out.octet_bytes())};
  const auto run = [&](auto kernel) {
    launch(context, "repack", kernel, blocks_for(n * chunks * 4), dim3(kThreads), 0, rows);
  };
  switch (out.dtype) {
#define MNEME_REPACK(type) \
  case DType::type:        \
    return run(repack<BlockOf<DType::type>::Block, BlockOf<DType::type>::Format>);
    MNEME_REPACK(kQ8_0)
    MNEME_REPACK(kQ4_0)
    MNEME_REPACK(kQ4_1)
    MNEME_REPACK(kQ5_0)
    MNEME_REPACK(kQ5_1)
    MNEME_REPACK(kQ2_K)
    MNEME_REPACK(kQ3_K)
    MNEME_REPACK(kQ4_K)
    MNEME_REPACK(kQ5_K)
    MNEME_REPACK(kQ6_K)
    MNEME_REPACK(kIQ4_NL)
    MNEME_REPACK(kIQ4_XS)
    MNEME_REPACK(kMXFP4)
    MNEME_REPACK(kNVFP4)
    MNEME_REPACK(kFp8)
    MNEME_REPACK(kInt4)
    MNEME_REPACK(kInt8)
#undef MNEME_REPACK
    default:
      break;
  }
}

void to_bf16_cuda(const std::byte* from, DType dtype, std::int64_t n, void* to, const CudaContext& context) {
  auto* out = static_cast<__nv_bfloat16*>(to);
  if (dtype == DType::kF32) {
    launch(context, "to_bf16", convert<float>, blocks_for(n), dim3(kThreads), 0, reinterpret_cast<const float*>(from),
           n, out);
  } else {
    launch(context, "to_bf16", convert<__half>, blocks_for(n), dim3(kThreads), 0, reinterpret_cast<const __half*>(from),
           n, out);
  }
}

void dequantise_cuda(const DeviceMatrix& w, std::int64_t first, std::int64_t n, void* out, const CudaContext& context) {
  const auto octet_bytes = static_cast<std::int64_t>(w.octet_bytes());
  const DequantiseTask rows{
      w.values + first / kOctet * octet_bytes, n, w.n_in, (n + kOctet - 1) / kOctet, w.slabs(), octet_bytes,
      static_cast<__nv_bfloat16*>(out)};
  with_format(w.dtype, [&](auto format) {
    launch(context, "dequantise", dequantise<decltype(format)>, blocks_for(rows.octets * rows.slabs * kWarp),
           dim3(kThreads), 0, rows);
  });
}

void gather_columns_cuda(const void* x, std::int32_t n, std::int64_t k, const std::int32_t* columns, void* out,
                         const CudaContext& context) {
  launch(context, "gather_columns", gather_columns, blocks_for(n * k), dim3(kThreads), 0,
         static_cast<const __nv_bfloat16*>(x), std::int64_t{n} * k, k, columns, static_cast<__nv_bfloat16*>(out));
}

void read_rows_cuda(const DeviceMatrix& w, const std::int32_t* ids, std::int32_t n, float* out,
                    const CudaContext& context) {
  const dim3 grid(static_cast<unsigned>(n)), block(kThreads);
  if (!is_quantised(w.dtype)) {
    launch(context, "read_rows", read_bf16_rows, grid, block, 0, reinterpret_cast<const __nv_bfloat16*>(w.values), ids,
           w.n_in, out);
    return;
  }
  with_format(w.dtype, [&](auto format) {
    launch(context, "read_rows", read_rows<decltype(format)>, grid, block, 0, w.values, ids, w.n_in,
           static_cast<std::int64_t>(w.octet_bytes()), out);
  });
}

void random_weights_cuda(const DeviceMatrix& w, std::uint64_t seed, const CudaContext& context) {
  auto* values = const_cast<std::byte*>(w.values);
  const auto bytes = static_cast<std::int64_t>(w.bytes());
  if (w.dtype == DType::kBF16) {
    launch(context, "random_bf16", random_bf16, dim3(kManyBlocks), dim3(kThreads), 0, seed, bytes / 4,
           reinterpret_cast<__nv_bfloat162*>(values));
    return;
  }
  launch(context, "random_words", random_words, dim3(kManyBlocks), dim3(kThreads), 0, seed, bytes / 4,
         reinterpret_cast<std::uint32_t*>(values));
  with_format(w.dtype, [&](auto format) {
    using F = decltype(format);
    // Standard deviation of the codes, and what puts their middle at zero where there is a minimum.
    constexpr Code kCode = F::kCode;
    constexpr float kDeviation = kCode == Code::k8     ? 73.9f
                                 : kCode == Code::kFp8 ? 148.0f
                                 : kCode == Code::kIq4 ? 71.2f
                                 : kCode == Code::kFp4 ? 6.1f
                                 : kCode == Code::k6   ? 18.5f
                                 : kCode == Code::k5   ? 9.2f
                                 : kCode == Code::k4   ? 4.61f
                                 : kCode == Code::k3   ? 2.29f
                                                       : 1.12f;
    constexpr float kMiddle = kCode == Code::k5 ? 15.5f : kCode == Code::k4 ? 7.5f : 1.5f;
    const float scale = kStandardDeviation / kDeviation;
    const int small = F::kScale == Scale::kExponent ? 120 : F::kScale == Scale::kSuperMin16 ? 9 : 31;
    const std::int64_t chunks = w.octets() * (w.slabs() / F::kSlabs);
    launch(context, "fill_scales", fill_scales<F>, blocks_for(chunks * 8), dim3(kThreads), 0, chunks, values,
           RandomScales{scale, -kMiddle * scale, small, F::kScale == Scale::kSuperMin16 ? 9 : 31});
  });
}

}  // namespace mneme
