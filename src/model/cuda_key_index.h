// Keys of sequences whose pages lie in host memory, once more on the device: what stands for pages that a layer selects
// as a whole. Memory comes in chunks of pages, as sequences grow, and stays with its place.
#pragma once

#include <cstdint>
#include <vector>

#include "src/cache/page_pool.h"
#include "src/device/memory.h"
#include "src/kernels/layer_choose_cuda.h"

namespace mneme {

class CudaKeyIndex {
 public:
  // n_layers: that select.
  CudaKeyIndex(const KvShape& shape, std::int32_t n_layers, std::int32_t n_places, std::int64_t max_context);

  // Room for n_tokens of a place. Errors  kResource.
  void reserve(std::int32_t place, std::int64_t n_tokens, const Stream& stream);
  // By the number of the layer among those that select.
  LayerKeys keys(std::int32_t number) const;
  std::size_t bytes() const { return chunks_.size() * chunk_bytes_ + table_.size(); }

 private:
  KvShape shape_;
  std::size_t chunk_bytes_;
  std::int32_t max_chunks_;
  std::vector<DeviceBuffer> chunks_;
  std::vector<std::int32_t> n_chunks_;  // by place
  DeviceBuffer table_;                  // [places][max_chunks] pointers
};

}  // namespace mneme
