#include "reference/selection/half_elements.h"
#include "src/base/check.h"
#include "src/selection/index/centroid.h"

namespace mneme {

void centroid_build_ref(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* centroid) {
  for (std::int32_t c = 0; c < shape.head_dim; ++c) {
    float sum = 0, n = 0;
    for (const KvRun& run : runs)
      for (std::int32_t t = 0; t < run.n_tokens; ++t, n += 1)
        sum += load_element(run.kv + t * shape.token_bytes(), c, shape.kv_dtype);
    MNEME_CHECK(n > 0, "the centroid of no token");
    store_element(sum / n, centroid, c, shape.kv_dtype);
  }
}

void centroid_score_ref(const float* q, const AttentionShape& shape, const std::byte* centroids, std::int64_t n,
                        float* scores, std::int64_t score_stride) {
  const std::int64_t dim = shape.head_dim;
  for (std::int32_t g = 0; g < shape.group; ++g)
    for (std::int64_t u = 0; u < n; ++u) {
      double sum = 0;
      for (std::int64_t c = 0; c < dim; ++c)
        sum += q[g * dim + c] * double{load_element(centroids, u * dim + c, shape.kv_dtype)};
      scores[g * score_stride + u] = static_cast<float>(sum);
    }
}

}  // namespace mneme
