// Keys and values in device code, in 16 or 8 bits (kv_quant.h). Readers take the element type as a template parameter:
// __nv_bfloat16, __half, or EightBit, whose rows read as bf16.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "src/cuda/common.cuh"
#include "src/kv/kv_tables_cuda.h"

namespace mneme::cuda {

struct EightBit {};

// What a reader of rows of T sees.
template <typename T>
using ReadAs = std::conditional_t<std::is_same_v<T, EightBit>, __nv_bfloat16, T>;

__device__ __forceinline__ float code_value(KvCodes codes, std::uint8_t code) {
  if (codes == KvCodes::kInt8) return static_cast<float>(static_cast<std::int8_t>(code));
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

// A token's key (part 0) or value (part 1).
template <typename T>
struct KvRow {
  const T* p;
  __device__ __forceinline__ KvRow(const std::byte* token, int head_dim, KvCodes, int part = 0)
      : p(reinterpret_cast<const T*>(token) + part * head_dim) {}
  __device__ __forceinline__ T operator[](int channel) const { return p[channel]; }
  // Channels [first, first + 8), first a multiple of 8: 16 bytes, past L1.
  __device__ __forceinline__ uint4 eight(int first) const { return __ldcg(reinterpret_cast<const uint4*>(p + first)); }
};
template <>
struct KvRow<EightBit> {
  const std::uint8_t* p;
  float scale;
  KvCodes codes;
  __device__ __forceinline__ KvRow(const std::byte* token, int head_dim, KvCodes codes, int part = 0)
      : p(reinterpret_cast<const std::uint8_t*>(token) + part * head_dim),
        scale(__ldcg(reinterpret_cast<const float*>(token + 2 * head_dim) + part)),
        codes(codes) {}
  __device__ __forceinline__ __nv_bfloat16 operator[](int channel) const {
    return __float2bfloat16_rn(code_value(codes, p[channel]) * scale);
  }
  __device__ __forceinline__ uint4 eight(int first) const {
    const uint2 v = __ldcg(reinterpret_cast<const uint2*>(p + first));
    const auto pair = [&](std::uint32_t word, int at) {
      return pack<__nv_bfloat16>(code_value(codes, static_cast<std::uint8_t>(word >> at)) * scale,
                                 code_value(codes, static_cast<std::uint8_t>(word >> (at + 8))) * scale);
    };
    return {pair(v.x, 0), pair(v.x, 16), pair(v.y, 0), pair(v.y, 16)};
  }
};

// Quantises one value by the inverse of its row's scale, as quantise_row_ref.
__device__ __forceinline__ std::uint8_t code_of(KvCodes codes, float x, float inverse) {
  const float v = __fmul_rn(x, inverse);
  if (codes == KvCodes::kInt8)
    return static_cast<std::uint8_t>(static_cast<std::int8_t>(max(-127, min(127, __float2int_rn(v)))));
  return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
}

// A row's scale and its inverse, from its largest magnitude (NaN: an element is not finite). Then its codes are 1, or,
// of a row that is as good as 0, 0: `constant` is that code, else -1.
struct CodeScale {
  float scale, inverse;
  int constant;
};
__device__ __forceinline__ CodeScale row_scale(KvCodes codes, float largest) {
  constexpr float kLeast = 0x1p-100f;  // below, 127 / largest would overflow
  if (!(largest >= kLeast)) return isnan(largest) ? CodeScale{largest, 0, 1} : CodeScale{0, 0, 0};
  const float most = codes == KvCodes::kInt8 ? 127.0f : 448.0f;
  return {__fdiv_rn(largest, most), __fdiv_rn(most, largest), -1};
}

// Quantises a row of keys or values, in a warp's registers, into the token's [K | V] and a copy of it (or null), and
// replaces the lane's pairs by what readers see. Lane i has pairs i, i + 32, ... of channels that RoPE rotates together.
template <int kPairs>
struct CodePairs {
  KvCodes codes;
  int d;
  bool is_v, neighbours;
  float (&x)[kPairs], (&y)[kPairs];

  __device__ __forceinline__ void write(std::byte* token, std::byte* copy) const {
    const int lane = threadIdx.x % kWarp, half = d / 2;
    float largest = 0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (lane + i * kWarp >= half) break;
      largest = fmaxf(largest, fmaxf(fabsf(x[i]), fabsf(y[i])));
      finite = finite && isfinite(x[i]) && isfinite(y[i]);
    }
#pragma unroll
    for (int k = kWarp / 2; k > 0; k /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, k));
    const CodeScale s = row_scale(codes, __all_sync(~0u, finite) ? largest : __int_as_float(0x7fc00000));
    const auto put = [&](int channel, std::uint8_t code) {
      const int at = channel + (is_v ? d : 0);
      reinterpret_cast<std::uint8_t*>(token)[at] = code;
      if (copy != nullptr) reinterpret_cast<std::uint8_t*>(copy)[at] = code;
    };
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int p = lane + i * kWarp;
      if (p >= half) break;
      for (int second = 0; second < 2; ++second) {
        float& v = second == 0 ? x[i] : y[i];
        const std::uint8_t code =
            s.constant >= 0 ? static_cast<std::uint8_t>(s.constant) : code_of(codes, v, s.inverse);
        put(neighbours ? 2 * p + second : p + second * half, code);
        v = __bfloat162float(__float2bfloat16_rn(code_value(codes, code) * s.scale));
      }
    }
    if (lane != 0) return;
    reinterpret_cast<float*>(token + 2 * d)[is_v ? 1 : 0] = s.scale;
    if (copy != nullptr) reinterpret_cast<float*>(copy + 2 * d)[is_v ? 1 : 0] = s.scale;
  }
};

// Calls f with the element type of these tables or slots.
template <typename Of, typename F>
void with_kv_type(const Of& of, F&& f) {
  if (of.codes != KvCodes::kNone) {
    f(EightBit());
  } else if (of.f16) {
    f(__half());
  } else {
    f(__nv_bfloat16());
  }
}

}  // namespace mneme::cuda
