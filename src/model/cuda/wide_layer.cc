#include "src/model/cuda/wide_layer.h"

#include <numeric>
#include <vector>

#include "src/base/check.h"
#include "src/model/cuda/retrieval/retrieval.h"
#include "src/ops/attention/attention_cuda.h"

namespace mneme {

std::int64_t CudaWideLayer::bytes(const KvShape& shape, std::int64_t max_context) {
  if (!is_eight_bit(shape.dtype)) return 0;
  return std::int64_t{pages_of_tokens(max_context)} * shape.n_kv_heads *
         static_cast<std::int64_t>(wide_shape(shape).page_bytes());
}

CudaWideLayer::CudaWideLayer(const KvShape& shape, std::int64_t max_context) {
  const Stream stream = Stream::make();
  const std::int32_t pages = pages_of_tokens(max_context);
  std::vector<std::int32_t> same(static_cast<std::size_t>(pages) * static_cast<std::size_t>(shape.n_kv_heads));
  std::iota(same.begin(), same.end(), 0);
  memory_ =
      DeviceBuffer(same.size() * wide_shape(shape).page_bytes(), "keys and values of a prompt's layer in 16 bits");
  blocks_ = DeviceBuffer(same.size() * sizeof(std::int32_t), "tables of these");
  copy_bytes(blocks_.data(), same.data(), blocks_.size(), stream);
  stream.synchronize();
  tables_ = {.base = memory_.data(),
             .blocks = blocks_.as<std::int32_t>(),
             .sequence_stride = static_cast<std::int64_t>(same.size()),
             .max_pages = pages,
             .n_kv_heads = shape.n_kv_heads,
             .head_dim = shape.head_dim};
}

KvTables CudaWideLayer::widen(const KvTables& tables, std::int32_t layer, std::int32_t slot, std::int32_t n_tokens,
                              const CudaContext& context) const {
  MNEME_CHECK(n_tokens <= tokens_a_head(), "{} tokens of {}", n_tokens, tokens_a_head());
  gather_kv_cuda(tables, layer, slot, n_tokens, tokens_a_head(), memory_.data(), context);
  KvTables result = tables_;
  if (tables.masks == nullptr) return result;
  MNEME_CHECK(tables.max_pages == result.max_pages, "{} and {} pages", tables.max_pages, result.max_pages);
  const std::int64_t heads = std::int64_t{layer} * tables.n_kv_heads;
  result.masks = tables.masks + slot * tables.sequence_stride + heads * tables.max_pages;
  result.shifts = tables.shifts + std::int64_t{slot} * tables.shift_stride + heads;
  return result;
}

}  // namespace mneme
