#include "src/base/ratio.h"
#include "src/selection/layer/row_moments.h"

namespace mneme {

void row_moments_ref(const ChannelBlock& rows, float* mean, float* m2) {
  for (std::int64_t c = rows.begin; c < rows.end; ++c) {
    double sum = 0, square = 0;
    for (std::int64_t i = 0; i < rows.n; ++i) sum += rows.x[i * rows.stride + c];
    const double centre = ratio(sum, rows.n);
    for (std::int64_t i = 0; i < rows.n; ++i) {
      const double d = rows.x[i * rows.stride + c] - centre;
      square += d * d;
    }
    mean[c] = static_cast<float>(centre);
    m2[c] = static_cast<float>(square);
  }
}

void row_bias_ref(const ChannelBlock& rows, const float* centre, const float* weight, float* bias) {
  for (std::int64_t i = 0; i < rows.n; ++i) {
    double sum = 0;
    for (std::int64_t c = rows.begin; c < rows.end; ++c) {
      const double d = rows.x[i * rows.stride + c] - double{centre[c]};
      sum += d * d * weight[c];
    }
    bias[i] = static_cast<float>(sum);
  }
}

void row_sum_ref(const ChannelBlock& rows, const float* weight, float* sum) {
  for (std::int64_t c = rows.begin; c < rows.end; ++c) {
    double s = 0;
    for (std::int64_t i = 0; i < rows.n; ++i) s += weight[i] * double{rows.x[i * rows.stride + c]};
    sum[c] = static_cast<float>(s);
  }
}

}  // namespace mneme
