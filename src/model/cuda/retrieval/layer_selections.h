// Selections of whole layers: the keys that they score, and the layer budget that a sequence's layers share (EntropyCut).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/methods/method_state.h"
#include "src/model/cuda/retrieval/key_index.h"
#include "src/model/cuda/retrieval/retrieval_traits.h"
#include "src/selection/layer/layer_select_cuda.h"

namespace mneme {

class LayerSelections {
 public:
  // Keys are read in `pages`, or, where these are in host memory, in copies. Errors  kResource.
  LayerSelections(const RetrievalTraits& traits, const KvTables& pages);

  bool copies_keys() const { return copies_.has_value(); }
  LayerKeys keys(std::int32_t layer) const;
  // Room for the copies of n_tokens; and copies of pages [first, stop) of a layer.
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
    return host_thetas_.as<double>() + std::int64_t{seq_slot} * traits_.n_selecting();
  }

  std::size_t key_bytes() const { return copies_ ? copies_->bytes() : 0; }
  std::size_t bytes() const { return shares_.size() + key_bytes(); }

 private:
  std::size_t rank_stride() const { return (static_cast<std::size_t>(traits_.device_cache().max_pages) + 3) / 4 * 4; }

  const RetrievalTraits& traits_;
  KvTables pages_;
  std::optional<CudaKeyIndex> copies_;
  // As in SelectLayer, of all sequence slots, in one allocation.
  LayerCut* cuts_ = nullptr;
  double *later_ = nullptr, *pools_ = nullptr, *thetas_ = nullptr;
  std::uint32_t* ranks_ = nullptr;
  DeviceBuffer shares_;
  PinnedBuffer host_cuts_, host_thetas_;
};

}  // namespace mneme
