// One block of each quantised weight type to and from f32: the specification that vector forms are tested against.
// Private to src/ops/gemm.
//
//   x, y  [dtype_info(type).block] f32
//
// NaN, inf  a block with either becomes NaN throughout (mxfp4, which has none: infinite), so that bad weights are
//           visible; ggml defines nothing for them.
#pragma once

#include "src/ops/gemm/quant.h"

namespace mneme {

void dequantise_block(const BlockQ8_0& b, float* y);
void dequantise_block(const BlockQ4_0& b, float* y);
void dequantise_block(const BlockQ4_1& b, float* y);
void dequantise_block(const BlockQ5_0& b, float* y);
void dequantise_block(const BlockQ5_1& b, float* y);
void dequantise_block(const BlockIQ4_NL& b, float* y);
void dequantise_block(const BlockMXFP4& b, float* y);
void dequantise_block(const BlockQ2_K& b, float* y);
void dequantise_block(const BlockQ3_K& b, float* y);
void dequantise_block(const BlockQ4_K& b, float* y);
void dequantise_block(const BlockQ5_K& b, float* y);
void dequantise_block(const BlockQ6_K& b, float* y);
void dequantise_block(const BlockIQ4_XS& b, float* y);
void dequantise_block(const BlockFp8& b, float* y);
void dequantise_block(const BlockInt4& b, float* y);
void dequantise_block(const BlockInt8& b, float* y);
void dequantise_block(const BlockNVFP4& b, float* y);

// As ggml's reference code rounds, bit for bit. There is none for iq4_xs, fp8, int4, int8 and nvfp4, which are only read.
void quantise_block(const float* x, BlockQ8_0& b);
void quantise_block(const float* x, BlockQ4_0& b);
void quantise_block(const float* x, BlockQ4_1& b);
void quantise_block(const float* x, BlockQ5_0& b);
void quantise_block(const float* x, BlockQ5_1& b);
void quantise_block(const float* x, BlockIQ4_NL& b);
void quantise_block(const float* x, BlockMXFP4& b);
void quantise_block(const float* x, BlockQ2_K& b);
void quantise_block(const float* x, BlockQ3_K& b);
void quantise_block(const float* x, BlockQ4_K& b);
void quantise_block(const float* x, BlockQ5_K& b);
void quantise_block(const float* x, BlockQ6_K& b);

}  // namespace mneme
