// Dot products of one query with many stored rows (GEMV), for indexes whose entry is one long vector.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/tensor/dtype.h"

namespace mneme {

// scores[i] = q . row i, for n contiguous rows.
//   q       [width]      f32
//   rows    [n, width]   bf16 or f16
//   scores  [n]          f32 out
// Requires  width is a multiple of 8.
// NaN  in a row: its score; in q: all scores.   Ties  equal rows score equal, bit for bit, at any index.
void row_dots_ref(const float* q, std::int64_t width, DType dtype, const std::byte* rows, std::int64_t n,
                  float* scores);
void row_dots_cpu(const float* q, std::int64_t width, DType dtype, const std::byte* rows, std::int64_t n,
                  float* scores);

}  // namespace mneme
