#include <algorithm>
#include <cmath>

#include "reference/selection/half_elements.h"
#include "src/base/check.h"
#include "src/selection/index/box.h"

namespace mneme {
namespace {

// Orders -0 below +0, so that the box does not depend on the tokens' order.
float greater(float a, float b) {
  return a > b || (a == b && std::signbit(b)) ? a : b;
}
float lesser(float a, float b) {
  return a < b || (a == b && std::signbit(a)) ? a : b;
}

double dot(const float* q, const std::byte* key, const AttentionShape& shape) {
  double sum = 0.0;
  for (std::int32_t c = 0; c < shape.head_dim; ++c) sum += q[c] * double{load_element(key, c, shape.kv_dtype)};
  return sum;
}

}  // namespace

void box_build_ref(std::span<const KvRun> runs, const AttentionShape& shape, BoxKind kind, std::byte* box) {
  const std::int32_t dim = shape.head_dim;
  for (std::int32_t c = 0; c < dim; ++c) {
    float hi = -INFINITY;
    float lo = INFINITY;
    bool nan = false;
    std::int64_t n = 0;
    const auto each_key = [&](const auto& visit) {
      for (const KvRun& run : runs)
        for (std::int32_t t = 0; t < run.n_tokens; ++t)
          visit(load_element(run.kv + t * shape.token_bytes(), c, shape.kv_dtype));
    };
    each_key([&](float k) {
      nan = nan || std::isnan(k);
      hi = greater(hi, k);
      lo = lesser(lo, k);
      ++n;
    });
    MNEME_CHECK(n > 0, "a box around no token");
    if (kind == BoxKind::kCuboidMean) {
      const float centre = 0.5f * hi + 0.5f * lo;
      float distance = 0.0f;
      each_key([&](float k) { distance += std::fabs(centre - k); });
      distance /= static_cast<float>(n);
      hi = centre + distance;
      lo = centre - distance;
    }
    store_element(nan ? NAN : hi, box, c, shape.kv_dtype);
    store_element(nan ? NAN : lo, box, dim + c, shape.kv_dtype);
  }
}

void box_score_ref(const float* q, const AttentionShape& shape, const std::byte* boxes, std::int64_t n, float* scores,
                   std::int64_t score_stride) {
  const std::int64_t dim = shape.head_dim;
  for (std::int32_t g = 0; g < shape.group; ++g)
    for (std::int64_t u = 0; u < n; ++u) {
      const std::byte* box = boxes + 4 * dim * u;
      double sum = 0.0;
      for (std::int64_t c = 0; c < dim; ++c) {
        const double x = q[g * dim + c];
        const double hi = x * load_element(box, c, shape.kv_dtype);
        const double lo = x * load_element(box, dim + c, shape.kv_dtype);
        sum += std::isnan(hi) || std::isnan(lo) ? NAN : std::max(hi, lo);
      }
      scores[g * score_stride + u] = static_cast<float>(sum);
    }
}

void key_score_ref(const float* q, const AttentionShape& shape, std::span<const KvRun> runs, float* scores,
                   std::int64_t score_stride) {
  std::int64_t at = 0;
  for (const KvRun& run : runs)
    for (std::int32_t t = 0; t < run.n_tokens; ++t, ++at)
      for (std::int32_t g = 0; g < shape.group; ++g)
        scores[g * score_stride + at] =
            static_cast<float>(dot(q + g * shape.head_dim, run.kv + t * shape.token_bytes(), shape));
}

}  // namespace mneme
