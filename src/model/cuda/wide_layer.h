// One layer of one sequence in bf16, as page tables, for kernels that read prompts: of keys and values in 8 bits, what
// readers see (kv_quant.h).
#pragma once

#include <cstdint>

#include "src/model/cuda/retrieval/own_pages.h"

namespace mneme {

// The shape of what readers see: 8 bits as bf16.
inline KvShape wide_shape(KvShape shape) {
  if (is_eight_bit(shape.dtype)) shape.dtype = DType::kBF16;
  return shape;
}

class CudaWideLayer {
 public:
  // Device bytes that it allocates; 0 where keys and values are in 16 bits.
  static std::int64_t bytes(const KvShape& shape, std::int64_t max_context);
  // Errors  kResource.
  CudaWideLayer(const KvShape& shape, std::int64_t max_context);

  // Tokens [0, n_tokens) of a layer, as the only sequence and layer of the result. Requires  n_tokens fit max_context.
  // Async  enqueues; earlier work of the same stream may still read the last one.
  KvTables widen(const LayerPages& from, std::int32_t n_tokens, const CudaContext& context) const;
  const std::byte* data() const { return pages_.tables().base; }
  std::int64_t tokens_a_head() const { return pages_.tokens_a_head(); }
  std::size_t bytes() const { return pages_.bytes(); }

 private:
  OwnPages pages_;
};

}  // namespace mneme
