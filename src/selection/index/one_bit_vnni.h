// Internal to the 1-bit scan: the form for CPUs with AVX512-VNNI.
#pragma once

#include "src/selection/index/one_bit.h"

namespace mneme {

inline constexpr std::int32_t kOneBitMaxGroup = 16, kOneBitMaxDim = 256;

using OneBitScan = void(const float* q, const AttentionShape& shape, const std::byte* groups, std::int64_t n_groups,
                        std::int32_t g, float* scores, std::int64_t score_stride);

// one_bit_score_cpu without its checks; null where the CPU, or Highway's selected target, lacks the instructions.
OneBitScan* one_bit_vnni_scan();

}  // namespace mneme
