#include <cmath>

#include "src/ops/norm_rope/output_gate.h"

namespace mneme {

void sigmoid_gate_ref(const ConstTensorView& x, const ConstTensorView& gate, const TensorView& out) {
  expect_shape("out", out, out.dtype(), {x.dim(0), x.dim(1)});
  for (std::int64_t i = 0; i < x.dim(0); ++i)
    for (std::int64_t j = 0; j < x.dim(1); ++j) {
      const double value = double{x.row_as<float>(i)[j]} / (1.0 + std::exp(-double{gate.row_as<float>(i)[j]}));
      if (out.dtype() == DType::kBF16)
        out.row_as<bf16>(i)[j] = bf16(static_cast<float>(value));
      else
        out.row_as<float>(i)[j] = static_cast<float>(value);
    }
}

}  // namespace mneme
