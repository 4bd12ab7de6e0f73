// Products with many rows by oneDNN, in bf16. Private to the matmul files.
#pragma once

#include <cstdint>
#include <span>

#include "src/kernels/matmul.h"

namespace mneme {

bool built_with_onednn();

// Whether oneDNN is the faster way for m rows and weights of this type on this CPU. Measured with two Zen 5 threads at
// m = 1024: weights stored in bf16 gain up to a tenth over our own tile, which in turn is as good or better where
// panels must be converted first (oneDNN packs x anew for each) and for fewer rows. A CPU with AMX multiplies several
// times faster than our tile's vdpbf16ps, always.
bool onednn_is_faster(DType weights, std::int64_t m);

// As matmul_cpu; x and the weights are rounded to bf16, sums are f32. Each worker calls oneDNN, which runs in that
// thread alone. Requires  a CPU with bf16 products; a build with oneDNN (MNEME_ONEDNN).
void matmul_onednn(const ConstTensorView& x, std::span<const MatmulOutput> outputs, ThreadPool& pool);

}  // namespace mneme
