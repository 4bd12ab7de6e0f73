// GEMMs with many rows by oneDNN, in bf16. Private to src/ops/gemm.
#pragma once

#include <cstdint>
#include <span>

#include "src/ops/gemm/gemm.h"

namespace mneme {

bool built_with_onednn();

// Whether oneDNN is faster for m rows and this weight type on this CPU. Measured on two Zen 5 threads at m = 1024:
// weights stored in bf16 gain up to 10 % over our tile; the tile is as fast or faster where panels are converted first
// (oneDNN packs x again for each) and for fewer rows. With AMX oneDNN is always faster, several times the tile's
// vdpbf16ps.
bool onednn_is_faster(DType weights, std::int64_t m);

// As gemm_cpu; x and weights rounded to bf16, sums in f32. Each worker calls oneDNN, which runs in that thread alone.
// Requires  a CPU with bf16 dot products; a build with oneDNN (MNEME_ONEDNN).
void gemm_onednn(const ConstTensorView& x, std::span<const GemmOutput> outputs, ThreadPool& pool);

}  // namespace mneme
