// Copies of keys on the device for sequences with pages in host memory: the index of layers with selection per layer.
// Memory is allocated in chunks of pages as sequences grow, and stays with its sequence slot.
#pragma once

#include <cstdint>
#include <vector>

#include "src/cuda/memory.h"
#include "src/kv/page_pool.h"
#include "src/selection/layer/layer_select_cuda.h"

namespace mneme {

class CudaKeyIndex {
 public:
  // n_layers: layers that select.
  CudaKeyIndex(const KvShape& shape, std::int32_t n_layers, std::int32_t n_seq_slots, std::int64_t max_context);

  // Ensures room for n_tokens of a sequence slot. Errors  kResource.
  void reserve(std::int32_t seq_slot, std::int64_t n_tokens, const Stream& stream);
  // By the layer's index among those that select.
  LayerKeys keys(std::int32_t number) const;
  std::size_t bytes() const { return chunks_.size() * chunk_bytes_ + table_.size(); }

 private:
  KvShape shape_;
  std::size_t chunk_bytes_;
  std::int32_t max_chunks_;
  std::vector<DeviceBuffer> chunks_;
  std::vector<std::int32_t> n_chunks_;  // by sequence slot
  DeviceBuffer table_;                  // [seq slots][max_chunks] pointers
};

}  // namespace mneme
