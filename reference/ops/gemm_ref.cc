#include <vector>

#include "src/base/check.h"
#include "src/ops/gemm/gemm.h"

namespace mneme {

void gemm_ref(const ConstTensorView& x, std::span<const GemmOutput> outputs) {
  const std::int64_t m = x.dim(0), k = x.dim(1);
  std::vector<float> row(k), weights(k);
  for (const GemmOutput& output : outputs) {
    const WeightMatrix& w = *output.w;
    MNEME_CHECK(w.n_in() == k, "x {} times w {}", x.to_string(), w.view().to_string());
    expect_shape("y", output.y, DType::kF32, {m, w.n_out()});
    for (std::int64_t o = 0; o < w.n_out(); ++o) {
      dequantise_row(w.view(), o, weights.data());
      for (std::int64_t i = 0; i < m; ++i) {
        dequantise_row(x, i, row.data());
        double sum = 0.0;
        for (std::size_t j = 0; j < row.size(); ++j) {
          const std::size_t at = w.columns().empty() ? j : w.columns()[j];
          sum += row[at] * double{weights[j]};
        }
        float& y = output.y.row_as<float>(i)[o];
        if (output.bias != nullptr) sum += output.bias[o];
        if (output.accumulate) sum += y;
        y = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace mneme
