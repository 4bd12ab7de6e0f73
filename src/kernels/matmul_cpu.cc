#include <vector>

#include "src/base/check.h"
#include "src/kernels/matmul.h"

namespace mneme {

WeightMatrix::WeightMatrix(ConstTensorView w) : w_(w) {
  MNEME_CHECK(w.rank() == 2, "a weight matrix has two dimensions: {}", w.to_string());
}

DType matmul_input_dtype(const WeightMatrix&, std::int64_t) {
  return DType::kF32;
}

void matmul_cpu(const ConstTensorView& x, std::span<const MatmulOutput> outputs, const CpuContext& context) {
  const std::int64_t m = x.dim(0), k = x.dim(1);
  std::vector<float> rows(static_cast<std::size_t>(m * k));
  for (std::int64_t i = 0; i < m; ++i) dequantise_row(x, i, rows.data() + i * k);
  for (const MatmulOutput& output : outputs) {
    const WeightMatrix& w = *output.w;
    MNEME_CHECK(w.n_in() == k, "x {} times w {}", x.to_string(), w.view().to_string());
    expect_shape("y", output.y, DType::kF32, {m, w.n_out()});
    context.pool->parallel_for(w.n_out(), 16, [&](std::int64_t begin, std::int64_t end, int) {
      std::vector<float> weights(static_cast<std::size_t>(k));
      for (std::int64_t o = begin; o < end; ++o) {
        dequantise_row(w.view(), o, weights.data());
        for (std::int64_t i = 0; i < m; ++i) {
          const float* row = rows.data() + i * k;
          float sum[16] = {};
          std::int64_t j = 0;
          for (; j + 16 <= k; j += 16)
            for (int lane = 0; lane < 16; ++lane)
              sum[lane] += row[j + lane] * weights[static_cast<std::size_t>(j + lane)];
          for (; j < k; ++j) sum[0] += row[j] * weights[static_cast<std::size_t>(j)];
          float total = output.bias != nullptr ? output.bias[o] : 0.0f;
          for (float s : sum) total += s;
          float& y = output.y.row_as<float>(i)[o];
          y = output.accumulate ? y + total : total;
        }
      }
    });
  }
}

}  // namespace mneme
