// Quantised weight types on the device: their codes to bf16, exactly, and their scales to f32.
//
// A type is a code and a scale: value = scale * (code - offset) + minimum. What a chunk's scale area has (device_matrix.h),
// g the row of the octet:
//
//   kHalf        [g][step] f16                                        q8_0 8.5 bits a weight, q4_0 4.5, q5_0 5.5, iq4_nl 4.5
//   kHalfMin     [g][step] f16 scale, f16 minimum                     q4_1 5, q5_1 6
//   kExponent    [g][step] exponent of two (mxfp4_scale)              mxfp4 4.25
//   kFloat64     [g][2 steps] f32                                     fp8 8.5
//   kFloat32     [g][step] f32                                        int8 9
//   kZero        [g][step] f32 whose low byte is the zero point       int4 5
//   kSuper32     [g] f16 d, [slab][g][step] scale + 128               iq4_xs 4.31
//   kSuperMin32  [g] f16 d, f16 dmin, [slab][g][step] scale, [slab][g][step] minimum   q4_k 4.63, q5_k 5.63
//   kSuper16     [g] f16 d, [slab][g][half step] scale + 128          q6_k 6.56, q3_k 3.56
//   kSuperMin16  [g] f16 d, f16 dmin, [slab][g][half step] scale | minimum << 4        q2_k 2.63
//   kFloat16     [g] f32 d, [slab][g][half step] e4m3                 nvfp4 4.63
#pragma once

#include "src/cuda/common.cuh"
#include "src/ops/gemm/device/device_matrix.h"

namespace mneme::cuda {

enum class Code { k2, k3, k4, k5, k6, k8, kFp8, kIq4, kFp4, kBf16 };
enum class Scale {
  kNone,
  kHalf,
  kHalfMin,
  kExponent,
  kFloat64,
  kFloat32,
  kZero,
  kSuper32,
  kSuperMin32,
  kSuper16,
  kSuperMin16,
  kFloat16
};

template <Code kCode_, Scale kScale_, int kOffset_>
struct WeightFormat {
  static constexpr Code kCode = kCode_;
  static constexpr Scale kScale = kScale_;
  static constexpr int kOffset = kOffset_;
  static constexpr bool kRowMajor = kCode == Code::kBf16;
  static constexpr bool kPer16 = kScale == Scale::kSuper16 || kScale == Scale::kSuperMin16 || kScale == Scale::kFloat16;
  static constexpr bool kMinimum = kScale == Scale::kHalfMin || kScale == Scale::kZero ||
                                   kScale == Scale::kSuperMin32 || kScale == Scale::kSuperMin16;
  static constexpr int kSlabs = kScale >= Scale::kSuper32 ? 2 : 1;  // per chunk
  // Codes that are unpacked with 128 and their offset on them (unpack_raw), and what takes that away: two bf16.
  static constexpr bool kRaw =
      kCode == Code::k2 || kCode == Code::k3 || kCode == Code::k4 || kCode == Code::k5 || kCode == Code::k6;
  static constexpr std::uint32_t kMinusZero = 0xc300c300u + kOffset * 0x00010001u;
  static constexpr int kMainWords = kCode == Code::k2 || kCode == Code::k3     ? 2
                                    : kCode == Code::k8 || kCode == Code::kFp8 ? 8
                                                                               : 4;
  static constexpr int kHighWords = kCode == Code::k3 || kCode == Code::k5 ? 1 : kCode == Code::k6 ? 2 : 0;
  static constexpr int kSlabBytes = kRowMajor ? 0 : (kMainWords + kHighWords) * 4 * kWarp;
  static constexpr int kScaleWords = kScale == Scale::kHalfMin || kScale == Scale::kFloat32 || kScale == Scale::kZero
                                         ? 4
                                     : kScale == Scale::kExponent ? 1
                                                                  : 2;
  static constexpr int kHeadBytes = kMinimum || kScale == Scale::kFloat16 ? 32 : 16;  // of super-blocks
  static constexpr int kScaleBytes = kRowMajor                   ? 0
                                     : kScale == Scale::kSuper32 ? 80
                                     : kScale == Scale::kSuper16 ? 144
                                     : kSlabs == 2               ? 160
                                                                 : 8 * 4 * kScaleWords;
  static constexpr int kChunkBytes = kSlabs * kSlabBytes + kScaleBytes;
};

using Bf16Format = WeightFormat<Code::kBf16, Scale::kNone, 0>;
using Q8_0Format = WeightFormat<Code::k8, Scale::kHalf, 0>;
using Q4_0Format = WeightFormat<Code::k4, Scale::kHalf, 8>;
using Q4_1Format = WeightFormat<Code::k4, Scale::kHalfMin, 0>;
using Q5_0Format = WeightFormat<Code::k5, Scale::kHalf, 16>;
using Q5_1Format = WeightFormat<Code::k5, Scale::kHalfMin, 0>;
using Iq4NlFormat = WeightFormat<Code::kIq4, Scale::kHalf, 0>;
using Iq4XsFormat = WeightFormat<Code::kIq4, Scale::kSuper32, 0>;
using Mxfp4Format = WeightFormat<Code::kFp4, Scale::kExponent, 0>;
using Nvfp4Format = WeightFormat<Code::kFp4, Scale::kFloat16, 0>;
using Fp8Format = WeightFormat<Code::kFp8, Scale::kFloat64, 0>;
using Int8Format = WeightFormat<Code::k8, Scale::kFloat32, 0>;
using Int4Format = WeightFormat<Code::k4, Scale::kZero, 0>;
using Q2KFormat = WeightFormat<Code::k2, Scale::kSuperMin16, 0>;
using Q3KFormat = WeightFormat<Code::k3, Scale::kSuper16, 4>;
using Q4KFormat = WeightFormat<Code::k4, Scale::kSuperMin32, 0>;
using Q5KFormat = WeightFormat<Code::k5, Scale::kSuperMin32, 0>;
using Q6KFormat = WeightFormat<Code::k6, Scale::kSuper16, 32>;

// ---- where words come from: shared memory in GEMMs, device memory elsewhere

struct SharedWords {
  std::uint32_t address;
  __device__ __forceinline__ SharedWords at(int bytes) const { return {address + bytes}; }
  __device__ __forceinline__ uint4 four() const {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
  }
  __device__ __forceinline__ uint2 two() const {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
  }
  __device__ __forceinline__ std::uint32_t one() const {
    std::uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
  }
  __device__ __forceinline__ std::uint16_t half() const {
    std::uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
    return v;
  }
};

struct GlobalWords {
  const std::byte* address;
  __device__ __forceinline__ GlobalWords at(int bytes) const { return {address + bytes}; }
  __device__ __forceinline__ uint4 four() const { return load_stream(address); }
  __device__ __forceinline__ uint2 two() const { return *reinterpret_cast<const uint2*>(address); }
  __device__ __forceinline__ std::uint32_t one() const { return *reinterpret_cast<const std::uint32_t*>(address); }
  __device__ __forceinline__ std::uint16_t half() const { return *reinterpret_cast<const std::uint16_t*>(address); }
};

__device__ __forceinline__ void put_four(std::uint32_t* to, const uint4& v) {
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// ---- codes

__device__ __forceinline__ std::uint32_t subtract_bf16(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 v =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const std::uint32_t&>(v);
}

// (word & mask) | bits, in one instruction: of two constants the compiler makes two.
__device__ __forceinline__ std::uint32_t and_or(std::uint32_t word, std::uint32_t mask, std::uint32_t bits) {
  std::uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(word), "r"(mask), "r"(bits));
  return v;
}

// Bits kFrom and kFrom + 16 and above (of `mask`) of a word, moved to bit kTo of the halves, with `bits`.
template <int kFrom, int kTo>
__device__ __forceinline__ std::uint32_t move_bits(std::uint32_t word, std::uint32_t mask, std::uint32_t bits) {
  return and_or(kFrom >= kTo ? word >> (kFrom - kTo) : word << (kTo - kFrom), mask, bits);
}

constexpr std::uint32_t kBf16_128 = 0x43004300u;  // 128 in bf16, whose low seven bits are free for a code

// A lane's codes of a slab.
template <typename F>
struct Codes {
  std::uint32_t main[F::kMainWords], high[F::kHighWords > 0 ? F::kHighWords : 1];

  template <typename Words>
  __device__ __forceinline__ void load(const Words& slab, int lane) {
    if constexpr (F::kMainWords == 2) {
      const uint2 v = slab.at(lane * 8).two();
      main[0] = v.x, main[1] = v.y;
    } else {
      put_four(main, slab.at(lane * 16).four());
      if constexpr (F::kMainWords == 8) put_four(main + 4, slab.at(512 + lane * 16).four());
    }
    const Words above = slab.at(F::kMainWords * 4 * kWarp);
    if constexpr (F::kHighWords == 1) high[0] = above.at(lane * 4).one();
    if constexpr (F::kHighWords == 2) {
      const uint2 v = above.at(lane * 8).two();
      high[0] = v.x, high[1] = v.y;
    }
  }

  // Pair kPair (columns 2 kPair, 2 kPair + 1 of the lane's eight) of step kStep: code - offset, two bf16.
  template <int kStep, int kPair>
  __device__ __forceinline__ std::uint32_t pair() const;
  template <int kStep>
  __device__ __forceinline__ void unpack(std::uint32_t (&out)[4]) const;
  // kRaw: 128 + code; else as unpack().
  template <int kStep, int kPair>
  __device__ __forceinline__ std::uint32_t raw_pair() const;
  template <int kStep>
  __device__ __forceinline__ void unpack_raw(std::uint32_t (&out)[4]) const;
};

// e4m3. A word has four codes s eeee mmm, 0 and 1 (2 and 3) in its low and high halves: the even pair's where a bf16 has
// them, the odd pair's in the bits between, so that either is unpacked by shifts of whole words.
//
//   bit    15  14 13 12  11  10 9 8 7 6 5 4  3 2 1 0
//   even   s                  e e e e m m m
//   odd        e  e  e   s                   e m m m
__device__ __forceinline__ std::uint32_t pack_fp8(std::uint32_t code, int i) {
  const std::uint32_t sign = code >> 7, rest = code & 127;
  const std::uint32_t half = i < 2 ? sign << 15 | rest << 4 : sign << 11 | (rest >> 4) << 12 | (rest & 15);
  return half << (16 * (i % 2));
}
template <int kPair>
__device__ __forceinline__ std::uint32_t bf16_of_fp8(std::uint32_t word) {
  constexpr std::uint32_t kUp = 0x7b807b80u;  // 2^120: bf16's bias less e4m3's
  const std::uint32_t bits =
      kPair % 2 == 0 ? word & 0x87f087f0u : and_or(word << 4, 0x80f080f0u, (word >> 4) & 0x07000700u);
  const __nv_bfloat162 scaled =
      __hmul2(reinterpret_cast<const __nv_bfloat162&>(bits), reinterpret_cast<const __nv_bfloat162&>(kUp));
  return reinterpret_cast<const std::uint32_t&>(scaled);
}

template <typename F>
template <int kStep, int kPair>
__device__ __forceinline__ std::uint32_t Codes<F>::pair() const {
  constexpr std::uint32_t kZero = kBf16_128 + F::kOffset * 0x00010001u;
  if constexpr (F::kCode == Code::k8) {
    // 128 + the low seven bits, minus 256 or 128 by the sign. The even pair's codes are low bytes of the word's halves.
    const std::uint32_t word = main[2 * kStep + kPair / 2], v = kPair % 2 == 0 ? word : word >> 8;
    return subtract_bf16(and_or(v, 0x007f007fu, kBf16_128), and_or(v, 0x00800080u, kBf16_128));
  } else if constexpr (F::kCode == Code::kFp8) {
    return bf16_of_fp8<kPair>(main[2 * kStep + kPair / 2]);
  } else {
    return subtract_bf16(raw_pair<kStep, kPair>(), kZero);
  }
}

template <typename F>
template <int kStep, int kPair>
__device__ __forceinline__ std::uint32_t Codes<F>::raw_pair() const {
  constexpr int kTwo = kStep % 2 * 8 + kPair * 2, kOne = kStep * 4 + kPair;  // bits of planes of 2, of 1
  std::uint32_t v;
  if constexpr (F::kMainWords == 2) {
    v = move_bits<kTwo, 0>(main[kStep / 2], 0x00030003u, kBf16_128);
    if constexpr (F::kCode == Code::k3) v = move_bits<kOne, 2>(high[0], 0x00040004u, v);
  } else {
    v = move_bits<4 * kPair, 0>(main[kStep], 0x000f000fu, kBf16_128);
    if constexpr (F::kCode == Code::k5) v = move_bits<kOne, 4>(high[0], 0x00100010u, v);
    if constexpr (F::kCode == Code::k6) v = move_bits<kTwo, 4>(high[kStep / 2], 0x00300030u, v);
  }
  return v;
}

// The 16 values of a code book as bf16: low bytes, high bytes.
template <Code kCode>
struct CodeBook;
template <>
struct CodeBook<Code::kIq4> {  // -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
  static constexpr std::uint32_t kLow[4] = {0x82a6d0feu, 0x20b00c44u, 0x18c85080u, 0xe2b28a54u};
  static constexpr std::uint32_t kHigh[4] = {0xc2c2c2c2u, 0xc1c1c2c2u, 0x4241413fu, 0x42424242u};
};
template <>
struct CodeBook<Code::kFp4> {  // 0 1 2 3 4 6 8 12 0 -1 -2 -3 -4 -6 -8 -12
  static constexpr std::uint32_t kLow[4] = {0x40008000u, 0x4000c080u, 0x40008000u, 0x4000c080u};
  static constexpr std::uint32_t kHigh[4] = {0x40403f00u, 0x41414040u, 0xc0c0bf00u, 0xc1c1c0c0u};
};

__device__ __forceinline__ std::uint32_t select_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  std::uint32_t v;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(selector));
  return v;
}

// Four nibbles to four bf16: their low three bits as selectors of bytes, and selectors of a half of the book.
template <Code kCode>
__device__ __forceinline__ void look_up(std::uint32_t low3, std::uint32_t pick, std::uint32_t& a, std::uint32_t& b) {
  using Book = CodeBook<kCode>;
  const std::uint32_t low = select_bytes(select_bytes(Book::kLow[0], Book::kLow[1], low3),
                                         select_bytes(Book::kLow[2], Book::kLow[3], low3), pick);
  const std::uint32_t high = select_bytes(select_bytes(Book::kHigh[0], Book::kHigh[1], low3),
                                          select_bytes(Book::kHigh[2], Book::kHigh[3], low3), pick);
  a = __byte_perm(low, high, 0x5140);
  b = __byte_perm(low, high, 0x7362);
}

template <typename F>
template <int kStep>
__device__ __forceinline__ void Codes<F>::unpack(std::uint32_t (&out)[4]) const {
  if constexpr (F::kCode == Code::kIq4 || F::kCode == Code::kFp4) {
    const std::uint32_t q = main[kStep], low3 = q & 0x77777777u, pick = and_or(q >> 1, 0x44444444u, 0x32103210u);
    look_up<F::kCode>(low3, pick, out[0], out[1]);
    look_up<F::kCode>(low3 >> 16, pick >> 16, out[2], out[3]);
  } else {
    out[0] = pair<kStep, 0>(), out[1] = pair<kStep, 1>(), out[2] = pair<kStep, 2>(), out[3] = pair<kStep, 3>();
  }
}

template <typename F>
template <int kStep>
__device__ __forceinline__ void Codes<F>::unpack_raw(std::uint32_t (&out)[4]) const {
  if constexpr (F::kRaw) {
    out[0] = raw_pair<kStep, 0>(), out[1] = raw_pair<kStep, 1>();
    out[2] = raw_pair<kStep, 2>(), out[3] = raw_pair<kStep, 3>();
  } else {
    unpack<kStep>(out);
  }
}

// ---- scales

// d times a byte of a word. Exact, as is d times 2^23, for a d of eleven bits: one instruction less than d * (byte - 0).
template <int kByte>
__device__ __forceinline__ float times_byte(float d, std::uint32_t word) {
  return __fmaf_rn(__uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 | kByte)), d, d * -8388608.0f);
}
// A byte of a word as a float.
template <int kByte>
__device__ __forceinline__ float float_of_byte(std::uint32_t word) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 | kByte)) - 8388608.0f;
}
// The same less 128.
template <int kByte>
__device__ __forceinline__ float float_of_signed(std::uint32_t word) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 | kByte)) - 8388736.0f;
}
// The same of e4m3. Its bits are those of an f32 2^120 times as small, subnormal ones too.
template <int kByte>
__device__ __forceinline__ float float_of_e4m3(std::uint32_t word) {
  const std::uint32_t code = word >> (8 * kByte);
  return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
}
__device__ __forceinline__ float float_of_nibble(std::uint32_t word, int shift) {
  return __uint_as_float((word >> shift & 15u) | 0x4b000000u) - 8388608.0f;
}
__device__ __forceinline__ float low_half(std::uint32_t halves) {
  float v;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(v) : "r"(halves));
  return v;
}
__device__ __forceinline__ float high_half(std::uint32_t halves) {
  float v;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(v) : "r"(halves));
  return v;
}

// The scales of row g in a slab. kHalf: of a step, the half that has columns 0 to 15 or 16 to 31 (kPer16 alone).
template <typename F>
struct Scales {
  std::uint32_t words[F::kScaleWords];
  float d, dmin;

  // chunk: the chunk's scale area; slab: which of the chunk.
  template <typename Words>
  __device__ __forceinline__ void load(const Words& chunk, int slab, int g) {
    if constexpr (F::kScale == Scale::kExponent) {
      words[0] = chunk.at(g * 4).one();
    } else if constexpr (F::kSlabs == 1) {
      if constexpr (F::kScaleWords == 4) {
        put_four(words, chunk.at(g * 16).four());
      } else {
        const uint2 v = chunk.at(g * 8).two();
        words[0] = v.x, words[1] = v.y;
      }
    } else {
      if constexpr (F::kMinimum) {
        const std::uint32_t both = chunk.at(g * 4).one();
        d = low_half(both), dmin = high_half(both);
      } else if constexpr (F::kScale == Scale::kFloat16) {
        d = __uint_as_float(chunk.at(g * 4).one());
      } else {
        d = low_half(chunk.at(g * 2).half());
      }
      const Words sub = chunk.at(F::kHeadBytes);
      if constexpr (F::kPer16) {
        const uint2 v = sub.at(slab * 64 + g * 8).two();
        words[0] = v.x, words[1] = v.y;
      } else {
        words[0] = sub.at(slab * 32 + g * 4).one();
        if constexpr (F::kMinimum) words[1] = sub.at(64 + slab * 32 + g * 4).one();
      }
    }
  }

  template <int kStep, int kHalf = 0>
  __device__ __forceinline__ float scale() const {
    if constexpr (F::kScale == Scale::kHalf) {
      return kStep % 2 == 0 ? low_half(words[kStep / 2]) : high_half(words[kStep / 2]);
    } else if constexpr (F::kScale == Scale::kHalfMin) {
      return low_half(words[kStep]);
    } else if constexpr (F::kScale == Scale::kExponent) {
      const std::uint32_t e = words[0] >> (8 * kStep) & 255u;
      return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    } else if constexpr (F::kScale == Scale::kFloat64) {
      return __uint_as_float(words[kStep / 2]);
    } else if constexpr (F::kScale == Scale::kFloat32) {
      return __uint_as_float(words[kStep]);
    } else if constexpr (F::kScale == Scale::kZero) {
      return __uint_as_float(words[kStep] & ~0xffu);
    } else if constexpr (F::kScale == Scale::kSuper32) {
      return d * float_of_signed<kStep>(words[0]);
    } else if constexpr (F::kScale == Scale::kSuperMin32) {
      return times_byte<kStep>(d, words[0]);
    } else if constexpr (F::kScale == Scale::kSuper16) {
      return d * float_of_signed<kStep % 2 * 2 + kHalf>(words[kStep / 2]);
    } else if constexpr (F::kScale == Scale::kFloat16) {
      return d * float_of_e4m3<kStep % 2 * 2 + kHalf>(words[kStep / 2]);
    } else {
      return d * float_of_nibble(words[kStep / 2], (kStep % 2 * 2 + kHalf) * 8);
    }
  }

  // What multiplies the sum of x, for types with kMinimum.
  template <int kStep, int kHalf = 0>
  __device__ __forceinline__ float minimum() const {
    if constexpr (F::kScale == Scale::kHalfMin) {
      return high_half(words[kStep]);
    } else if constexpr (F::kScale == Scale::kZero) {
      return -(scale<kStep>() * float_of_byte<0>(words[kStep]));
    } else if constexpr (F::kScale == Scale::kSuperMin32) {
      return -times_byte<kStep>(dmin, words[1]);
    } else {
      return -(dmin * float_of_nibble(words[kStep / 2], (kStep % 2 * 2 + kHalf) * 8 + 4));
    }
  }
  // The minimum for -128 times the sum.
  template <int kStep, int kHalf = 0>
  __device__ __forceinline__ float raw_minimum() const {
    return minimum<kStep, kHalf>() * (-1.0f / 128);
  }

  // Makes steps 2 u and 2 u + 1 steps 0 and 1.
  __device__ __forceinline__ void take_steps(int u) {
    if constexpr (F::kScale == Scale::kExponent || F::kScale == Scale::kSuper32 || F::kScale == Scale::kSuperMin32) {
      words[0] >>= 16 * u;
      if constexpr (F::kMinimum) words[1] >>= 16 * u;
    } else if constexpr (F::kScaleWords == 4) {
      words[0] = u == 0 ? words[0] : words[2], words[1] = u == 0 ? words[1] : words[3];
    } else {
      words[0] = u == 0 ? words[0] : words[1];
    }
  }

  // The weight of a code less its offset, as src/ops/gemm/block_codec.h has it, bit for bit.
  template <int kStep, int kHalf>
  __device__ __forceinline__ float value(float code) const {
    if constexpr (F::kScale == Scale::kZero) {
      return scale<kStep>() * (code - float_of_byte<0>(words[kStep]));
    } else if constexpr (F::kMinimum) {
      return __fmaf_rn(scale<kStep, kHalf>(), code, minimum<kStep, kHalf>());
    } else {
      return scale<kStep, kHalf>() * code;
    }
  }
};

// Calls f with the format of a quantised type.
template <typename Function>
void with_format(DType dtype, const Function& f) {
  switch (dtype) {
    case DType::kQ8_0:
      return f(Q8_0Format{});
    case DType::kQ4_0:
      return f(Q4_0Format{});
    case DType::kQ4_1:
      return f(Q4_1Format{});
    case DType::kQ5_0:
      return f(Q5_0Format{});
    case DType::kQ5_1:
      return f(Q5_1Format{});
    case DType::kQ2_K:
      return f(Q2KFormat{});
    case DType::kQ3_K:
      return f(Q3KFormat{});
    case DType::kQ4_K:
      return f(Q4KFormat{});
    case DType::kQ5_K:
      return f(Q5KFormat{});
    case DType::kQ6_K:
      return f(Q6KFormat{});
    case DType::kIQ4_NL:
      return f(Iq4NlFormat{});
    case DType::kIQ4_XS:
      return f(Iq4XsFormat{});
    case DType::kMXFP4:
      return f(Mxfp4Format{});
    case DType::kNVFP4:
      return f(Nvfp4Format{});
    case DType::kFp8:
      return f(Fp8Format{});
    case DType::kInt4:
      return f(Int4Format{});
    default:
      return f(Int8Format{});
  }
}

}  // namespace mneme::cuda
