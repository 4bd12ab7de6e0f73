#include "src/selection/layer/row_dots.h"

#include "src/tensor/half.h"
#include "src/tensor/half_value.h"

namespace mneme {

void row_dots_ref(const float* q, std::int64_t width, DType dtype, const std::byte* rows, std::int64_t n,
                  float* scores) {
  for (std::int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (std::int64_t c = 0; c < width; ++c) sum += q[c] * double{load_half(rows, i * width + c, dtype)};
    scores[i] = static_cast<float>(sum);
  }
}

}  // namespace mneme
