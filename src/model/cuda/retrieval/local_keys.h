// Rotated keys of the last tokens of every sequence slot and layer, a ring of pages, where keys are stored pre-RoPE: what
// the local part of a step attends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kv/append/append_cuda.h"
#include "src/model/cuda/retrieval/own_pages.h"
#include "src/model/cuda/retrieval/retrieval_state.h"

namespace mneme {

class LocalKeys {
 public:
  explicit LocalKeys(const RetrievalState& state);

  KeyRing ring(std::int32_t layer, const std::int32_t* seq_slots) const {
    return {.tables = pages_.tables(),
            .seq_slots = seq_slots,
            .layer = layer * n_seq_slots_,
            .pages = pages_.tables().max_pages};
  }
  // Rotates keys of the last `recent` of n_tokens to their own positions.
  void fill(std::int32_t seq_slot, std::int32_t n_tokens, std::int32_t recent, const KvTables& pages,
            const CudaContext& context);
  std::size_t bytes() const { return pages_.bytes(); }

 private:
  std::int32_t n_layers_, n_seq_slots_;
  bool neighbours_;
  OwnPages pages_;
  DeviceBuffer inv_freq_;
};

}  // namespace mneme
