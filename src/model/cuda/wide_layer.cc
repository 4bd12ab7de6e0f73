#include "src/model/cuda/wide_layer.h"

#include "src/base/check.h"
#include "src/ops/attention/attention_cuda.h"

namespace mneme {

std::int64_t CudaWideLayer::bytes(const KvShape& shape, std::int64_t max_context) {
  if (!is_eight_bit(shape.dtype)) return 0;
  return std::int64_t{pages_of(max_context)} * shape.n_kv_heads *
         static_cast<std::int64_t>(wide_shape(shape).page_bytes());
}

CudaWideLayer::CudaWideLayer(const KvShape& shape, std::int64_t max_context)
    : pages_(wide_shape(shape), 1, pages_of(max_context), "keys and values of a prompt's layer in 16 bits") {}

KvTables CudaWideLayer::widen(const LayerPages& from, std::int32_t n_tokens, const CudaContext& context) const {
  MNEME_CHECK(n_tokens <= tokens_a_head(), "{} tokens of {}", n_tokens, tokens_a_head());
  gather_kv_cuda(from.tables, from.layer, from.slot, n_tokens, tokens_a_head(), pages_.tables().base, context);
  return with_holes_of(from, pages_.tables());
}

}  // namespace mneme
