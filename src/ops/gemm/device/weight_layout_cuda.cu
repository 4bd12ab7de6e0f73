// Converts weights to the layouts of skinny_gemm_cuda.h, and back to bf16 for GEMMs with many rows.
#include "src/cuda/common.cuh"
#include "src/ops/gemm/quant.h"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256;
constexpr float kStandardDeviation = 0.02f;

// Offset of value `i` of block `b` in a row: in bytes for q8_0, in nibbles for 4-bit types.
__device__ __forceinline__ std::int64_t q8_offset(std::int64_t b, int i) {
  return b / 2 * 64 + i / 8 * 16 + b % 2 * 8 + i % 8;
}
__device__ __forceinline__ std::int64_t q4_offset(std::int64_t b, int i) {
  const int e = i % 8;
  return b / 4 * 128 + i / 8 * 32 + b % 4 * 8 + (e % 2) * 4 + e / 2;
}

// One thread per block of the padded row.
__global__ void repack_q8(const std::byte* blocks, std::int64_t n_blocks, std::int64_t padded, std::int64_t stride,
                          std::int8_t* values, std::uint16_t* scales, std::int64_t total) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= total) return;
  const std::int64_t row = at / padded, b = at % padded;
  const auto* from = reinterpret_cast<const std::uint8_t*>(blocks) + (row * n_blocks + b) * sizeof(BlockQ8_0);
  const bool there = b < n_blocks;
  scales[row * stride + b] = there ? static_cast<std::uint16_t>(from[0] | from[1] << 8) : 0;
  for (int i = 0; i < kQuantBlock; ++i)
    values[row * padded * kQuantBlock + q8_offset(b, i)] = there ? static_cast<std::int8_t>(from[2 + i]) : 0;
}

// One thread per four blocks (a chunk of 64 bytes), because nibbles share bytes. Values and scales past the row's end
// are zero.
template <typename Block>
__global__ void repack_q4(const std::byte* blocks, std::int64_t n_blocks, std::int64_t padded, std::int64_t stride,
                          std::uint32_t* values, std::uint16_t* scales, std::int64_t total) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= total) return;
  constexpr int kHalves = static_cast<int>(sizeof(Block) - kQuantBlock / 2) / 2;  // scale, and minimum
  const std::int64_t chunks = padded / 4, row = at / chunks, c = at % chunks;
  for (int j = 0; j < 4; ++j) {
    const std::int64_t b = c * 4 + j;
    const auto* from = reinterpret_cast<const std::uint8_t*>(blocks) + (row * n_blocks + b) * sizeof(Block);
    const bool there = b < n_blocks;
    for (int i = 0; i < kHalves; ++i)
      scales[row * stride + b * kHalves + i] =
          there ? static_cast<std::uint16_t>(from[2 * i] | from[2 * i + 1] << 8) : 0;
    const std::uint8_t* q = from + 2 * kHalves;
    for (int t = 0; t < 4; ++t) {
      std::uint32_t word = 0;
      for (int e = 0; e < 8; ++e) {
        const int i = 8 * t + e;
        const std::uint32_t nibble = !there ? 8u : i < 16 ? q[i] & 15u : q[i - 16] >> 4;
        word |= nibble << (4 * ((e % 2) * 4 + e / 2));
      }
      values[(row * chunks + c) * 16 + t * 4 + j] = word;
    }
  }
}

template <typename T>
__global__ void convert(const T* from, std::int64_t n, __nv_bfloat16* to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) to[i] = __float2bfloat16_rn(widen(from[i]));
}

struct Quantised {
  const std::byte* values;
  const __half* scales;
  std::int64_t padded, n_in;  // columns
  std::int64_t scale_stride;
  DType dtype;
};

__global__ void dequantise(Quantised w, std::int64_t first, std::int64_t total, __nv_bfloat16* out) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= total) return;
  const std::int64_t row = first + at / w.n_in, column = at % w.n_in, b = column / kQuantBlock;
  const int i = static_cast<int>(column % kQuantBlock);
  const __half* scales = w.scales + row * w.scale_stride;
  if (w.dtype == DType::kQ8_0) {
    const std::int8_t value = reinterpret_cast<const std::int8_t*>(w.values)[row * w.padded + q8_offset(b, i)];
    out[at] = __float2bfloat16_rn(__half2float(scales[b]) * static_cast<float>(value));
    return;
  }
  const std::int64_t at_nibble = row * w.padded + q4_offset(b, i);
  const int nibble = reinterpret_cast<const std::uint8_t*>(w.values)[at_nibble / 2] >> (at_nibble % 2 * 4) & 15;
  const float value = w.dtype == DType::kQ4_1 ? __fmaf_rn(__half2float(scales[2 * b]), static_cast<float>(nibble),
                                                          __half2float(scales[2 * b + 1]))
                                              : __half2float(scales[b]) * static_cast<float>(nibble - 8);
  out[at] = __float2bfloat16_rn(value);
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

__global__ void fill_half(float even, float odd, std::int64_t n, __half* out) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads)
    out[i] = __float2half_rn(i % 2 == 0 ? even : odd);
}

dim3 blocks_for(std::int64_t n) {
  return dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads));
}

constexpr unsigned kManyBlocks = 1024;

}  // namespace

void repack_cuda(const std::byte* blocks, const DeviceMatrix& out, const CudaContext& context) {
  const std::int64_t n_blocks = out.n_in / kQuantBlock, padded = out.padded() / kQuantBlock;
  auto* values = const_cast<std::byte*>(out.values);
  auto* scales = reinterpret_cast<std::uint16_t*>(const_cast<std::byte*>(out.scales));
  if (out.dtype == DType::kQ8_0) {
    const std::int64_t total = out.n_out * padded;
    launch(context, "repack_q8", repack_q8, blocks_for(total), dim3(kThreads), 0, blocks, n_blocks, padded,
           out.scale_stride(), reinterpret_cast<std::int8_t*>(values), scales, total);
  } else {
    const std::int64_t total = out.n_out * padded / 4;
    launch(context, "repack_q4", out.dtype == DType::kQ4_1 ? repack_q4<BlockQ4_1> : repack_q4<BlockQ4_0>,
           blocks_for(total), dim3(kThreads), 0, blocks, n_blocks, padded, out.scale_stride(),
           reinterpret_cast<std::uint32_t*>(values), scales, total);
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
  const std::int64_t total = n * w.n_in;
  launch(context, "dequantise", dequantise, blocks_for(total), dim3(kThreads), 0,
         Quantised{w.values, reinterpret_cast<const __half*>(w.scales), w.padded(), w.n_in, w.scale_stride(), w.dtype},
         first, total, static_cast<__nv_bfloat16*>(out));
}

void random_weights_cuda(const DeviceMatrix& w, std::uint64_t seed, const CudaContext& context) {
  auto* values = const_cast<std::byte*>(w.values);
  const auto bytes = static_cast<std::int64_t>(w.value_bytes_per_row()) * w.n_out;
  if (w.dtype == DType::kBF16) {
    launch(context, "random_bf16", random_bf16, dim3(kManyBlocks), dim3(kThreads), 0, seed, bytes / 4,
           reinterpret_cast<__nv_bfloat162*>(values));
    return;
  }
  launch(context, "random_words", random_words, dim3(kManyBlocks), dim3(kThreads), 0, seed, bytes / 4,
         reinterpret_cast<std::uint32_t*>(values));
  // Uniform values over the type's range, scaled to the deviation.
  const float deviation = w.dtype == DType::kQ8_0 ? 73.9f : 4.61f;
  const float scale = kStandardDeviation / deviation;
  // Minima put the middle of 0..15 at zero.
  const float odd = w.dtype == DType::kQ4_1 ? -7.5f * scale : scale;
  launch(context, "fill_half", fill_half, dim3(kManyBlocks), dim3(kThreads), 0, scale, odd, w.n_out * w.scale_stride(),
         reinterpret_cast<__half*>(const_cast<std::byte*>(w.scales)));
}

}  // namespace mneme
