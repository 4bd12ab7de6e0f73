#include "src/kernels/attention_cuda.h"

#include "src/base/error.h"

namespace mneme {

void expect_attention_shape_cuda(std::int32_t head_dim, std::int32_t group) {
  constexpr std::int32_t kMostGroup = 16;
  if (head_dim != 64 && head_dim != 128)
    fail(ErrorKind::kUnsupported, "head_dim {}: attention on the device takes 64 and 128", head_dim);
  if (group < 1 || group > kMostGroup)
    fail(ErrorKind::kUnsupported, "{} query heads share one KV head: attention on the device takes 1 to {}", group,
         kMostGroup);
}

}  // namespace mneme
