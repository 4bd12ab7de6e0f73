// Selections of whole layers: the keys that they score, and the layer budget that a sequence's layers share (EntropyCut).
//
// Where pages are in host memory, keys are copied to the device, by chunks of pages that are allocated as sequences grow
// and stay with their sequence slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/cuda/memory.h"
#include "src/methods/method_state.h"
#include "src/model/cuda/retrieval/retrieval_state.h"
#include "src/selection/layer/layer_select_cuda.h"

namespace mneme {

class LayerSelections {
 public:
  // Keys are read in `pages`, or in copies. Errors  kResource.
  LayerSelections(const RetrievalState& state, const KvTables& pages);

  bool copies_keys() const { return max_chunks_ > 0; }
  LayerKeys keys(std::int32_t layer) const;
  // Room for the copies of n_tokens; and copies of pages [first, stop) of a layer. Errors  kResource.
  void reserve(std::int32_t seq_slot, std::int64_t n_tokens, const Stream& stream);
  void copy_keys(std::int32_t layer, std::int32_t seq_slot, const LayerPages& from, std::int32_t first,
                 std::int32_t stop, const CudaContext& context);

  // Sends the shared layer budget of a row's next step.
  void send_cut(MethodState& method, std::int32_t seq_slot, const Stream& stream);
  // As CudaRetrieval::select_by_layer().
  void select(std::int32_t layer, const SlotRows& rows, const void* remote_q, std::int32_t* remote_to,
              const CudaContext& context);
  // Copies the entropies of the step to the host, [n_selecting] of a sequence slot; below 0 where nothing was scored.
  void fetch(const Stream& stream);
  const double* entropies(std::int32_t seq_slot) const {
    return host_thetas_.as<double>() + std::int64_t{seq_slot} * state_.n_selecting();
  }

  std::size_t key_bytes() const { return chunks_.size() * chunk_bytes_ + table_.size(); }
  std::size_t bytes() const { return shares_.size() + key_bytes(); }

 private:
  std::size_t rank_stride() const { return (static_cast<std::size_t>(state_.device_cache().max_pages) + 3) / 4 * 4; }

  const RetrievalState& state_;
  KvTables pages_;
  std::size_t chunk_bytes_ = 0;
  std::int32_t max_chunks_ = 0;  // of a sequence; 0: keys are read in the pages
  std::vector<DeviceBuffer> chunks_;
  std::vector<std::int32_t> n_chunks_;  // by sequence slot
  DeviceBuffer table_;                  // [seq slots][max_chunks] pointers
  // As in SelectLayer, of all sequence slots, in one allocation.
  LayerCut* cuts_ = nullptr;
  double *later_ = nullptr, *pools_ = nullptr, *thetas_ = nullptr;
  std::uint32_t* ranks_ = nullptr;
  DeviceBuffer shares_;
  PinnedBuffer host_cuts_, host_thetas_;
};

}  // namespace mneme
