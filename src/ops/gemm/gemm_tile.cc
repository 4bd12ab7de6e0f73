// GEMMs with many rows: packing, dequantising and the f32 tile, in Highway.
#include "src/ops/gemm/gemm_kernels.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/base/unchecked_loop.h"
#include "src/ops/gemm/quant.h"
#include "src/tensor/buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/ops/gemm/gemm_tile.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/gemm/quant-inl.h"
#include "src/ops/simd/round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, kMaxTileTokens / 2>;

int TileTokens() {
  return 2 * static_cast<int>(hn::Lanes(F32()));
}

// kVectors vectors of tokens by kRows rows of weights, sums in registers.
template <int kVectors, int kRows>
MNEME_UNCHECKED_LOOP inline void f32_tile(const float* packed, const float* const* w, std::int64_t k, Sums from,
                                          float* sums) {
  const F32 d;
  const std::int64_t lanes = hn::Lanes(d);
  const std::int64_t tokens = 2 * lanes;
  hn::Vec<F32> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kVectors; ++c)
      sum[r][c] = from == Sums::kStart ? hn::Zero(d) : hn::Load(d, sums + r * tokens + c * lanes);
  for (std::int64_t j = 0; j < k; ++j) {
    hn::Vec<F32> x[kVectors];
    for (int c = 0; c < kVectors; ++c) x[c] = hn::Load(d, packed + j * tokens + c * lanes);
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const auto weight = hn::Set(d, w[r][j]);
      for (int c = 0; c < kVectors; ++c) sum[r][c] = hn::MulAdd(x[c], weight, sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kVectors; ++c) hn::Store(sum[r][c], d, sums + r * tokens + c * lanes);
}

void TileGemm(const std::byte* packed, const std::byte* const* w, std::int64_t k, int n_tokens, Sums from,
              float* sums) {
  const auto lanes = static_cast<int>(hn::Lanes(F32()));
  // 16 sums, 2 vectors of x and a weight exceed the 16 registers of AVX2: there, half the rows at a time.
  constexpr int kRows = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3 ? 4 : kTileRows;
  const auto* x = reinterpret_cast<const float*>(packed);
  const float* rows[kTileRows];
  for (int r = 0; r < kTileRows; ++r) {
    rows[r] = reinterpret_cast<const float*>(w[r]);
    expect_addressable(rows[r], k * sizeof(float));
  }
  expect_addressable(packed, k * 2 * lanes * sizeof(float));
  expect_addressable(sums, kTileRows * 2 * lanes * sizeof(float));
  for (int r = 0; r < kTileRows; r += kRows) {
    float* out = sums + r * 2 * lanes;
    if (n_tokens > lanes)
      f32_tile<2, kRows>(x, rows + r, k, from, out);
    else
      f32_tile<1, kRows>(x, rows + r, k, from, out);
  }
}

HWY_INLINE void write_sum(float v, int row, int token, const TileOutput& o) {
  float& y = o.y[token * o.stride + row];
  if (o.bias != nullptr) v += o.bias[row];
  y = o.accumulate ? v + y : v;
}

#if HWY_TARGET == HWY_SCALAR

void Transpose(const std::byte* const* rows, int tokens, std::int64_t words, std::byte* packed) {
  for (std::int64_t j = 0; j < words; ++j)
    for (int t = 0; t < tokens; ++t) std::memcpy(packed + (j * tokens + t) * 4, rows[t] + j * 4, 4);
}

void WriteTiles(const float* sums, int tile_tokens, const TileOutput& o) {
  for (int r = 0; r < o.rows; ++r)
    for (int t = 0; t < o.tokens; ++t) write_sum(sums[r * tile_tokens + t], r, t, o);
}

#else

using U32x4 = hn::Full128<std::uint32_t>;
using U64x2 = hn::Full128<std::uint64_t>;

// Transposes the 4 x 4 block with rows a, b, c, d.
HWY_INLINE void transpose(hn::Vec<U32x4>& a, hn::Vec<U32x4>& b, hn::Vec<U32x4>& c, hn::Vec<U32x4>& d) {
  const U32x4 d32;
  const U64x2 d64;
  const auto ab0 = hn::BitCast(d64, hn::InterleaveLower(d32, a, b)),
             ab1 = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
  const auto cd0 = hn::BitCast(d64, hn::InterleaveLower(d32, c, d)),
             cd1 = hn::BitCast(d64, hn::InterleaveUpper(d32, c, d));
  a = hn::BitCast(d32, hn::InterleaveLower(d64, ab0, cd0));
  b = hn::BitCast(d32, hn::InterleaveUpper(d64, ab0, cd0));
  c = hn::BitCast(d32, hn::InterleaveLower(d64, ab1, cd1));
  d = hn::BitCast(d32, hn::InterleaveUpper(d64, ab1, cd1));
}

// Transposes rows [tokens] of `words` 32-bit words to packed [words, tokens]. Requires  tokens a multiple of 4.
void Transpose(const std::byte* const* rows, int tokens, std::int64_t words, std::byte* packed) {
  const U32x4 d;
  auto* out = reinterpret_cast<std::uint32_t*>(packed);
  for (int t = 0; t < tokens; t += 4) {
    const std::uint32_t* row[4];
    for (int i = 0; i < 4; ++i) row[i] = reinterpret_cast<const std::uint32_t*>(rows[t + i]);
    std::int64_t j = 0;
    for (; j + 4 <= words; j += 4) {
      auto v0 = hn::LoadU(d, row[0] + j), v1 = hn::LoadU(d, row[1] + j);
      auto v2 = hn::LoadU(d, row[2] + j), v3 = hn::LoadU(d, row[3] + j);
      transpose(v0, v1, v2, v3);
      hn::Store(v0, d, out + (j + 0) * tokens + t);
      hn::Store(v1, d, out + (j + 1) * tokens + t);
      hn::Store(v2, d, out + (j + 2) * tokens + t);
      hn::Store(v3, d, out + (j + 3) * tokens + t);
    }
    for (; j < words; ++j)
      for (int i = 0; i < 4; ++i) std::memcpy(out + j * tokens + t + i, rows[t + i] + j * 4, 4);
  }
}

// Transposes four rows of sums at a time into one 128-bit vector per token. All rows of four tokens are written before
// the next tokens: rows of y are far apart, often by a power of two, and switching tokens every few columns would evict
// every line from the L1 in between.
void WriteTiles(const float* sums, int tile_tokens, const TileOutput& o) {
  const hn::Full128<float> d;
  const U32x4 du;
  const int whole_rows = o.rows / 4 * 4, whole_tokens = o.tokens / 4 * 4;
  const auto finish = [&](hn::Vec<U32x4> bits, int token, int row) HWY_ATTR {
    auto v = hn::BitCast(d, bits);
    float* y = o.y + token * o.stride + row;
    if (o.bias != nullptr) v = hn::Add(v, hn::LoadU(d, o.bias + row));
    if (o.accumulate) v = hn::Add(v, hn::LoadU(d, y));
    hn::StoreU(v, d, y);
  };
  for (int t = 0; t < whole_tokens; t += 4) {
    for (int r = 0; r < whole_rows; r += 4) {
      const auto* s = reinterpret_cast<const std::uint32_t*>(sums + r * tile_tokens + t);
      auto v0 = hn::Load(du, s), v1 = hn::Load(du, s + tile_tokens);
      auto v2 = hn::Load(du, s + 2 * tile_tokens), v3 = hn::Load(du, s + 3 * tile_tokens);
      transpose(v0, v1, v2, v3);
      finish(v0, t, r);
      finish(v1, t + 1, r);
      finish(v2, t + 2, r);
      finish(v3, t + 3, r);
    }
  }
  for (int t = 0; t < o.tokens; ++t)
    for (int r = t < whole_tokens ? whole_rows : 0; r < o.rows; ++r) write_sum(sums[r * tile_tokens + t], r, t, o);
}

#endif

// One row of any weight type as f32 or bf16.
void ConvertRow(const std::byte* row, DType from, std::int64_t k, DType to, std::byte* out) {
  const hn::CappedTag<float, 16> d;
  if (to == DType::kBF16)
    convert_row(d, row, from, k, reinterpret_cast<bf16*>(out));
  else
    convert_row(d, row, from, k, reinterpret_cast<float*>(out));
}

}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {

HWY_EXPORT(TileTokens);
HWY_EXPORT(TileGemm);
HWY_EXPORT(Transpose);
HWY_EXPORT(WriteTiles);
HWY_EXPORT(ConvertRow);

namespace {

void f32_gemm(const std::byte* packed, const std::byte* const* w, std::int64_t k, int n_tokens, Sums from,
              float* sums) {
  HWY_DYNAMIC_DISPATCH(TileGemm)(packed, w, k, n_tokens, from, sums);
}

void f32_convert(const ConstTensorView& w, std::int64_t begin, std::int64_t end, std::byte* rows) {
  convert_rows(w, begin, end, DType::kF32, rows);
}

}  // namespace

const TileKernel& f32_tile_kernel() {
  thread_local TileKernel kernel;  // tests change the target between calls
  kernel = {
      .element = DType::kF32, .tokens = HWY_DYNAMIC_DISPATCH(TileTokens)(), .gemm = f32_gemm, .convert = f32_convert};
  return kernel;
}

void write_tiles(const float* sums, int tile_tokens, const TileOutput& out) {
  HWY_DYNAMIC_DISPATCH(WriteTiles)(sums, tile_tokens, out);
}

void convert_rows(const ConstTensorView& w, std::int64_t begin, std::int64_t end, DType element, std::byte* rows) {
  const std::int64_t k = w.dim(1);
  const std::size_t bytes = row_bytes(element, padded_columns(element, k));
  for (std::int64_t r = begin; r < end; ++r, rows += bytes) {
    if (w.dtype() == element)
      std::memcpy(rows, w.row(r), row_bytes(element, k));
    else
      HWY_DYNAMIC_DISPATCH(ConvertRow)(w.row(r), w.dtype(), k, element, rows);
    if (padded_columns(element, k) != k) std::memset(rows + row_bytes(element, k), 0, bytes - row_bytes(element, k));
  }
}

void pack_tile(const TileKernel& kernel, const ConstTensorView& x, std::int64_t begin, int n, std::byte* packed) {
  const std::int64_t k = x.dim(1);
  const std::size_t bytes = row_bytes(kernel.element, padded_columns(kernel.element, k));
  thread_local Buffer zeros, converted;
  const std::byte* rows[kMaxTileTokens];
  const bool as_it_is = x.dtype() == kernel.element && padded_columns(kernel.element, k) == k;
  if (!as_it_is) {
    converted.reserve(bytes * n);
    convert_rows(x, begin, begin + n, kernel.element, converted.data());
  }
  if (n < kernel.tokens) {
    zeros.reserve(bytes);
    std::memset(zeros.data(), 0, bytes);
  }
  for (int t = 0; t < kernel.tokens; ++t) {
    if (t >= n)
      rows[t] = zeros.data();
    else
      rows[t] = as_it_is ? x.row(begin + t) : converted.data() + t * bytes;
  }
  HWY_DYNAMIC_DISPATCH(Transpose)(rows, kernel.tokens, bytes / 4, packed);
}

}  // namespace mneme
#endif  // HWY_ONCE
