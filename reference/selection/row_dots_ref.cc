#include "src/selection/layer/row_dots.h"

#include "src/tensor/half.h"

namespace mneme {

void row_dots_ref(const float* q, std::int64_t width, DType dtype, const std::byte* rows, std::int64_t n,
                  float* scores) {
  for (std::int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t at = i * width + c;
      const float x = dtype == DType::kBF16 ? static_cast<float>(reinterpret_cast<const bf16*>(rows)[at])
                                            : static_cast<float>(reinterpret_cast<const f16*>(rows)[at]);
      sum += q[c] * double{x};
    }
    scores[i] = static_cast<float>(sum);
  }
}

}  // namespace mneme
