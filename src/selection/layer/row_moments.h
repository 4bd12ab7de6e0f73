// Mean and variance of the channels of a few rows, each row's distance from given moments, and weighted sums of rows.
//
//   x  [n, stride] f32; channels [begin, end) of each row are used
#pragma once

#include <cstdint>

namespace mneme {

struct ChannelBlock {
  const float* x = nullptr;
  std::int64_t n = 0, stride = 0;
  std::int64_t begin = 0, end = 0;  // channels
};

// mean[c], m2[c] = sum over rows of (x - mean)^2, for channels [begin, end); other channels are not written.
// Numerics  two passes in f32.   Requires  n >= 1.
void row_moments_ref(const ChannelBlock& rows, float* mean, float* m2);
void row_moments_cpu(const ChannelBlock& rows, float* mean, float* m2);

// bias[i] = sum over channels of (x[i, c] - centre[c])^2 * weight[c].
void row_bias_ref(const ChannelBlock& rows, const float* centre, const float* weight, float* bias);
void row_bias_cpu(const ChannelBlock& rows, const float* centre, const float* weight, float* bias);

// sum[c] = sum over rows of weight[i] * x[i, c], for channels [begin, end).
void row_sum_ref(const ChannelBlock& rows, const float* weight, float* sum);
void row_sum_cpu(const ChannelBlock& rows, const float* weight, float* sum);

}  // namespace mneme
