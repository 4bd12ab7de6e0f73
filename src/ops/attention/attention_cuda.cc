#include "src/ops/attention/attention_cuda.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "src/base/error.h"
#include "src/ops/attention/head_dims_cuda.h"

namespace mneme {
namespace {

template <int... kDims>
std::span<const std::int32_t> values_of(HeadDims<kDims...>) {
  static constexpr std::array<std::int32_t, sizeof...(kDims)> kValues = {kDims...};
  return kValues;
}

}  // namespace

std::span<const std::int32_t> attention_head_dims_cuda() {
  return values_of(BuiltHeadDims());
}

void expect_attention_shape_cuda(std::int32_t head_dim, std::int32_t group) {
  constexpr std::int32_t kMaxGroup = 16;
  const std::span<const std::int32_t> built = attention_head_dims_cuda();
  if (std::find(built.begin(), built.end(), head_dim) == built.end())
    fail(ErrorKind::kUnsupported,
         "head_dim {}: attention on the device is built for {} (others of 64, 80, 96, 128 and 256 by "
         "-DMNEME_HEAD_DIMS=...)",
         head_dim, fmt::join(built, ", "));
  if (group < 1 || group > kMaxGroup)
    fail(ErrorKind::kUnsupported, "{} query heads share one KV head: attention on the device takes 1 to {}", group,
         kMaxGroup);
}

void expect_eight_bit_cuda(std::int32_t head_dim) {
  if (!takes_eight_bit(head_dim))
    fail(ErrorKind::kUnsupported,
         "kv_cache_dtype: keys and values in 8 bits are for heads of 64 and 128 on the device, found {}; bf16 and f16 "
         "are for all",
         head_dim);
}

}  // namespace mneme
