// Inner kernels of gemm_cpu, one table per instruction set. Private to src/ops/gemm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/tensor/view.h"

namespace mneme {

// ---- many rows
//
// A tile is kTileRows weight rows times T tokens (rows of x). Vector lanes are tokens: x is packed once per call, so
// that one load reads the same column of many tokens, and weights are broadcast. So weights are read in the
// checkpoint's layout, without a repacked copy, and the sum of one (token, weight row) has the same order in any tile.

inline constexpr int kTileRows = 8;        // weight rows per tile
inline constexpr int kMaxTileTokens = 32;  // upper bound of TileKernel::tokens

// Bytes per row of the columns that are multiplied in one pass, so that they stay in the L2 cache for all tiles that
// use them. Longer rows take several passes, each continuing the sums of the previous one.
inline constexpr std::int64_t kBlockBytes = 8192;
enum class Sums { kStart, kGoOn };

struct TileKernel {
  DType element;  // of packed x and of the weight rows: kF32 or kBF16
  int tokens;     // T
  // sums [kTileRows, T]: row r, token t = (previous sum, or 0) + sum over j < k of w[r][j] * x[t][j].
  //   packed  T tokens, same columns, from pack_tile
  //   w       kTileRows pointers to rows of `element`; reads k elements, an even number in bf16
  // Tokens from n_tokens on may be left unwritten.
  void (*gemm)(const std::byte* packed, const std::byte* const* w, std::int64_t k, int n_tokens, Sums from,
               float* sums);
  // Converts rows [begin, end) of any weight matrix to `element`, stride padded_columns(k), zero-padded: convert_rows,
  // or a faster form.
  void (*convert)(const ConstTensorView& w, std::int64_t begin, std::int64_t end, std::byte* rows);
};

// f32; on every CPU.
const TileKernel& f32_tile_kernel();
// bf16; null where the CPU has no bf16 dot product.
const TileKernel* bf16_tile_kernel();

// Columns of a weight row and of packed x, rounded up to pairs for bf16.
inline std::int64_t padded_columns(DType element, std::int64_t k) {
  return element == DType::kBF16 ? (k + 1) / 2 * 2 : k;
}

// Packs rows [begin, begin + n) of x, n <= T, as one tile; missing tokens are zero.   packed [T * padded_columns(k)]
void pack_tile(const TileKernel& kernel, const ConstTensorView& x, std::int64_t begin, int n, std::byte* packed);
// Converts rows [begin, end) of any weight matrix to f32 or bf16 (round to nearest even), stride padded_columns(k),
// zero-padded.
void convert_rows(const ConstTensorView& w, std::int64_t begin, std::int64_t end, DType element, std::byte* rows);

// Destination of sums [rows rounded up to kTileRows, T] of tiles below each other:
// y[token, row] = sums[row, token] (+ bias[row]) (+ y).
struct TileOutput {
  float* y;             // address of token 0, row 0
  std::int64_t stride;  // floats between tokens
  const float* bias;    // of row 0, or null
  bool accumulate;
  int rows, tokens;
};
void write_tiles(const float* sums, int tile_tokens, const TileOutput& out);

// ---- few rows

inline constexpr std::int64_t kMaxFewRows = 16;

// Kernel for up to kMaxFewRows rows of x with one weight type; reads the weights once, at memory bandwidth.
struct SkinnyKernel {
  std::size_t (*prepared_bytes)(std::int64_t m, std::int64_t k);
  // Converts x to the kernel's format. Requires  x f32.
  void (*prepare)(const ConstTensorView& x, std::byte* prepared);
  // sums[i * stride + r - begin] = sum over j of w[r][j] * x[i][j], begin <= r < end.
  void (*gemm)(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
               std::int64_t end, float* sums, std::int64_t stride);
};

// Kernel for a weight type, on every CPU. For quantised types x is rounded to 15 bits in blocks of 32 and must be
// finite.
const SkinnyKernel& rows_kernel(DType weights);
// Its form for the types of codes-inl.h.
const SkinnyKernel& codes_rows_kernel();
// Its form for fp8.
const SkinnyKernel& fp8_rows_kernel();
// Dequantises each row: slow, correct for any x.
const SkinnyKernel& exact_rows_kernel();
// VNNI kernel for quantised types; null where the CPU lacks it, and for types without one.
const SkinnyKernel* vnni_rows_kernel(DType weights);
// Its form for blocks of 256. Requires  a CPU that has it.
const SkinnyKernel* vnni_super_block_kernel(DType weights);
// VNNI kernel for kBatchRows or more rows of x, where compute and not memory is the limit; null where the CPU
// lacks it, and for blocks of 256.
inline constexpr std::int64_t kBatchRows = 3;
const SkinnyKernel* vnni_batch_kernel(DType weights);

}  // namespace mneme
