// Products of queries with packed rows of 4 and 8 bits, and the small dense products in f32 that summaries are made
// with.
//
// Nibbles: value c of a row is in byte c / 2, the even one in the lower half, stored plus 8: -8 to 7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kv/kv_run.h"

namespace mneme {

// Packed rows of consecutive entries: `rows` rows an entry, the first at `first` of its bytes.
struct PackedEntries {
  const std::byte* entries = nullptr;
  std::size_t entry_bytes = 0, first = 0;
  std::int64_t n_entries = 0;
  std::int32_t rows = 1, length = 0;  // length: values of a row, a multiple of 8
};

// out[g, i] = q[g] . row i, for the n_entries * rows rows: q [group, length] f32; out row stride `stride` floats.
void nibble_dots_cpu(const float* q, std::int32_t group, const PackedEntries& rows, float* out, std::int64_t stride);
// The same for rows of signed and of unsigned bytes.
void int8_dots_cpu(const float* q, std::int32_t group, const PackedEntries& rows, float* out, std::int64_t stride);
void uint8_dots_cpu(const float* q, std::int32_t group, const PackedEntries& rows, float* out, std::int64_t stride);
// out[t] = sum over rows i of weights[i] * value t of row i, of one entry: out [length].
void nibble_sum_cpu(const float* weights, const std::byte* nibbles, std::int32_t rows, std::int32_t length, float* out);

// log of the sum of exp over `width` consecutive values: x [n, width], out [n]. -inf is no weight; a NaN gives NaN.
void log_sum_exp_rows_cpu(const float* x, std::int64_t n, std::int32_t width, float* out);

// Keys as f32, exactly.   x [tokens of runs, D] out
void load_keys_cpu(std::span<const KvRun> runs, const AttentionShape& shape, float* x);
// out[i, j] = a[i] . b[j]:   a [n, dim], b [m, dim], out [n, m]; dim a multiple of 8.
void row_products_cpu(const float* a, std::int64_t n, const float* b, std::int64_t m, std::int64_t dim, float* out);
// c [dim, dim] += x^T x:   x [n, dim]; dim a multiple of 8.
void add_outer_cpu(const float* x, std::int64_t n, std::int64_t dim, float* c);

}  // namespace mneme
