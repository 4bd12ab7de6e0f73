#include "src/selection/gate/gate.h"

#include <algorithm>
#include <cmath>

#include "src/selection/pool/group_pool.h"

namespace mneme {

float pooled_cosine(GatePool pool, const float* q, const float* before, std::int32_t group, std::int32_t head_dim) {
  float sum = 0.0f, largest = -2.0f, smallest = 2.0f;
  for (std::int32_t h = 0; h < group; ++h) {
    const float c = cosine(q + h * head_dim, before + h * head_dim, head_dim);
    sum += c;
    largest = std::max(largest, c);
    smallest = std::min(smallest, c);
  }
  if (std::isnan(sum)) return sum;
  switch (pool) {
    case GatePool::kMean:
      return sum / static_cast<float>(group);
    case GatePool::kMax:
      return largest;
    case GatePool::kAny:
      return smallest;
  }
  return sum;
}

}  // namespace mneme
