#include <cmath>
#include <cstring>

#include "src/base/check.h"
#include "src/kernels/centroid.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

float load(const std::byte* elements, std::int64_t i, DType dtype) {
  std::uint16_t bits;
  std::memcpy(&bits, elements + 2 * i, sizeof(bits));
  if (dtype == DType::kBF16) return static_cast<float>(std::bit_cast<bf16>(bits));
  return static_cast<float>(std::bit_cast<f16>(bits));
}

void store(float x, std::byte* elements, std::int64_t i, DType dtype) {
  const std::uint16_t quiet = dtype == DType::kBF16 ? 0x7fc0 : 0x7e00;
  const std::uint16_t bits = std::isnan(x) ? quiet : dtype == DType::kBF16 ? bf16(x).bits : f16(x).bits;
  std::memcpy(elements + 2 * i, &bits, sizeof(bits));
}

}  // namespace

void centroid_build_ref(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* centroid) {
  for (std::int32_t c = 0; c < shape.head_dim; ++c) {
    float sum = 0, n = 0;
    for (const KvRun& run : runs)
      for (std::int32_t t = 0; t < run.n_tokens; ++t, n += 1)
        sum += load(run.kv + static_cast<std::size_t>(t) * shape.token_bytes(), c, shape.kv_dtype);
    MNEME_CHECK(n > 0, "the centroid of no token");
    store(sum / n, centroid, c, shape.kv_dtype);
  }
}

void centroid_score_ref(const float* q, const AttentionShape& shape, const std::byte* centroids, std::int64_t n,
                        float* scores, std::int64_t score_stride) {
  const std::int64_t dim = shape.head_dim;
  for (std::int32_t g = 0; g < shape.group; ++g)
    for (std::int64_t u = 0; u < n; ++u) {
      double sum = 0;
      for (std::int64_t c = 0; c < dim; ++c)
        sum += static_cast<double>(q[g * dim + c]) * static_cast<double>(load(centroids, u * dim + c, shape.kv_dtype));
      scores[g * score_stride + u] = static_cast<float>(sum);
    }
}

}  // namespace mneme
