#include "src/selection/pool/group_pool.h"

#include <cmath>

namespace mneme {

void pool_queries(const float* q, std::int32_t group, std::int32_t head_dim, Pool pool, float* pooled) {
  for (std::int32_t c = 0; c < head_dim; ++c) {
    float result = q[c];
    for (std::int32_t g = 1; g < group; ++g) {
      const float x = q[g * head_dim + c];
      if (pool == Pool::kMeanQ)
        result += x;
      else if (x > result || std::isnan(x))  // NaN stays: nothing compares greater
        result = x;
    }
    pooled[c] = pool == Pool::kMeanQ ? result / static_cast<float>(group) : result;
  }
}

}  // namespace mneme
