// Memory of a device cache: its index, cache slots and tables, queries, plans, scratch; and copies of some on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/mirrored_buffer.h"
#include "src/model/cuda/retrieval/retrieval_state.h"

namespace mneme {

class RetrievalMemory {
 public:
  // Allocates, and writes the addresses to `view`, which `state` describes. Errors  kResource.
  RetrievalMemory(const RetrievalState& state, DeviceCache& view);

  std::size_t bytes() const;  // on the device
  std::size_t slot_bytes() const { return slots_.size(); }
  std::size_t index_bytes() const { return index_.size(); }

  MirroredBuffer plans, counts;
  DeviceBuffer scratch[2];          // of selections that may overlap
  DeviceBuffer frames;              // scratch: keys that frames are fitted to
  DeviceBuffer log_weights, top_p;  // of listed tokens; scratch
  MirroredBuffer layer_rows;        // CudaRetrieval::LayerLengths: [2][layers that select][n_rows]
  PinnedBuffer host_units;          // UnitLists::n_units

 private:
  // For all layers that select and all sequence slots.
  struct Sizes {
    std::size_t states = 0, heads = 0;  // (layer, sequence slot); times heads of the cache slots
    std::size_t listed = 0, slots = 0;  // of a head
    std::size_t query_bytes = 0;
  };
  void allocate_index(const RetrievalState& t, const Sizes& n, UnitIndexes& index);
  void allocate_tables(const RetrievalState& t, const Sizes& n, DeviceCache& view);
  void allocate_queries(const RetrievalState& t, const Sizes& n, DeviceCache& view);
  void allocate_scratch(const RetrievalState& t);

  DeviceBuffer slots_, index_, tables_, queries_;
};

}  // namespace mneme
