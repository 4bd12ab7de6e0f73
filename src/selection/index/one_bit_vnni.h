// Internal to the scan over 1-bit keys: the form for CPUs that multiply bytes (AVX512-VNNI).
#pragma once

#include "src/kernels/one_bit.h"

namespace mneme {

inline constexpr std::int32_t kOneBitMaxGroup = 16, kOneBitMaxDim = 256;

using OneBitScan = void(const float* q, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups,
                        std::int32_t g, float* scores, std::int64_t score_stride);

// one_bit_score_cpu without its checks; null where the CPU, or the instructions that Highway was told to choose, have
// none.
OneBitScan* one_bit_vnni_scan();

}  // namespace mneme
