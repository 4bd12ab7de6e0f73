// The inner loops of matmul_cpu, one table for each way a CPU computes them. Private to the matmul files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/tensor/view.h"

namespace mneme {

// ---- many rows ----
//
// A tile is a few rows of weights times a few rows of x (tokens). Vector lanes are tokens: x is packed once per call so
// that one load brings the same column of many tokens, and a weight is broadcast. So weights are read as the checkpoint
// stores them, no repacked copy is needed, and the sum of one (token, weight row) is always made in the same order,
// whatever else the tile holds.

inline constexpr int kTileRows = 8;        // weight rows of a tile
inline constexpr int kMaxTileTokens = 32;  // room to plan for; TileKernel::tokens says how many there are

// Columns of x and w that are multiplied in one go, so that they stay in the L2 cache for all the tiles that meet
// there; a long row takes several goes, which go on from the sums of the last.
inline constexpr std::int64_t kBlockBytes = 8192;
enum class Sums { kStart, kGoOn };

struct TileKernel {
  DType element;  // of packed x and of the weight rows: kF32 or kBF16
  int tokens;     // T
  // sums [kTileRows, T]: row r, token t = (what is there, or 0) + sum over j < k of w[r][j] * x[t][j].
  //   packed  T tokens of the same columns, as pack_tile leaves them
  //   w       kTileRows pointers to rows of `element`; k elements are read, in bf16 an even number
  // Tokens from n_tokens on may be left unwritten.
  void (*product)(const std::byte* packed, const std::byte* const* w, std::int64_t k, int n_tokens, Sums from,
                  float* sums);
  // Rows [begin, end) of any weight matrix as `element`, padded_columns(k) apart, padded with zeros: convert_rows, or
  // faster.
  void (*convert)(const ConstTensorView& w, std::int64_t begin, std::int64_t end, std::byte* rows);
};

// Whether Highway's chosen target is AVX-512; the kernels below that name an instruction ask, so that tests which
// choose a lesser one get it everywhere.
bool highway_takes_avx512();

// f32, on every CPU.
const TileKernel& f32_tile_kernel();
// bf16, or null where the CPU has no bf16 products.
const TileKernel* bf16_tile_kernel();

// Columns of a weight row and of packed x: bf16 goes by pairs.
inline std::int64_t padded_columns(DType element, std::int64_t k) {
  return element == DType::kBF16 ? (k + 1) / 2 * 2 : k;
}

// Packs rows [begin, begin + n) of x, n <= T, as one tile; missing tokens are zeros.   packed: T * padded_columns(k)
// elements.
void pack_tile(const TileKernel& kernel, const ConstTensorView& x, std::int64_t begin, int n, std::byte* packed);
// Rows [begin, end) of any weight matrix as f32 or bf16 (rounded to nearest even), padded_columns(k) apart, padded with
// zeros.
void convert_rows(const ConstTensorView& w, std::int64_t begin, std::int64_t end, DType element, std::byte* rows);

// What becomes of the sums of tiles that lie below each other, [rows rounded up to kTileRows, T]:
// y[token, row] = sums[row, token] (+ bias[row]) (+ y).
struct TileOutput {
  float* y;             // token 0, row 0
  std::int64_t stride;  // floats between tokens
  const float* bias;    // of row 0, or null
  bool accumulate;
  int rows, tokens;
};
void write_tiles(const float* sums, int tile_tokens, const TileOutput& out);

// ---- few rows ----

inline constexpr std::int64_t kMaxFewRows = 16;

// Products of up to kMaxFewRows rows of x with one weight type, made to read the weights once at the speed of memory.
struct RowsKernel {
  std::size_t (*prepared_bytes)(std::int64_t m, std::int64_t k);
  // Brings x into the form that product wants. Requires  x f32.
  void (*prepare)(const ConstTensorView& x, std::byte* prepared);
  // sums[i * stride + r - begin] = sum over j of w[r][j] * x[i][j], begin <= r < end.
  void (*product)(const std::byte* prepared, std::int64_t m, const ConstTensorView& w, std::int64_t begin,
                  std::int64_t end, float* sums, std::int64_t stride);
};

// For a weight type, on every CPU. Quantised types round x to 15 bits in blocks of 32 and want it finite.
const RowsKernel& rows_kernel(DType weights);
// Dequantises each row: slow, and right for any x.
const RowsKernel& exact_rows_kernel();
// For kQ8_0 and kQ4_0 by VNNI, or null where the CPU has none.
const RowsKernel* vnni_rows_kernel(DType weights);
// The same for kBatchRows rows of x and more, where arithmetic limits and not memory; null where that is.
inline constexpr std::int64_t kBatchRows = 3;
const RowsKernel* vnni_batch_kernel(DType weights);

}  // namespace mneme
