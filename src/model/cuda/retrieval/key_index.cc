#include "src/model/cuda/retrieval/key_index.h"

namespace mneme {
namespace {

constexpr std::int64_t kChunkTokens = std::int64_t{kKeyChunkPages} * kPageTokens;

}  // namespace

CudaKeyIndex::CudaKeyIndex(const KvShape& shape, std::int32_t n_layers, std::int32_t n_seq_slots,
                           std::int64_t max_context)
    : shape_(shape),
      chunk_bytes_(key_chunk_bytes(n_layers, shape.n_kv_heads, shape.head_dim)),
      max_chunks_(static_cast<std::int32_t>((max_context + kChunkTokens - 1) / kChunkTokens)),
      n_chunks_(static_cast<std::size_t>(n_seq_slots), 0),
      table_(static_cast<std::size_t>(n_seq_slots) * static_cast<std::size_t>(max_chunks_) * sizeof(std::byte*),
             "tables of keys") {}

void CudaKeyIndex::reserve(std::int32_t seq_slot, std::int64_t n_tokens, const Stream& stream) {
  std::int32_t& n = n_chunks_[static_cast<std::size_t>(seq_slot)];
  while (n * kChunkTokens < n_tokens) {
    std::byte* chunk = chunks_.emplace_back(chunk_bytes_, "keys of sequences in host memory").data();
    copy_bytes(table_.data() + (std::size_t{static_cast<std::uint32_t>(seq_slot * max_chunks_ + n)}) * sizeof(chunk),
               &chunk, sizeof(chunk), stream);
    stream.synchronize();  // `chunk` is a local variable
    ++n;
  }
}

LayerKeys CudaKeyIndex::keys(std::int32_t number) const {
  return {.pages = {.n_kv_heads = shape_.n_kv_heads, .head_dim = shape_.head_dim, .f16 = shape_.dtype == DType::kF16},
          .layer = number,
          .chunks = table_.as<std::byte*>(),
          .max_chunks = max_chunks_};
}

}  // namespace mneme
