#include "src/model/cuda/retrieval/local_keys.h"

#include <algorithm>

#include "src/ops/norm_rope/rotate_keys_cuda.h"

namespace mneme {

LocalKeys::LocalKeys(const RetrievalState& state)
    : n_layers_(static_cast<std::int32_t>(state.shape().n_layers)),
      n_seq_slots_(state.options().n_seq_slots),
      neighbours_(state.options().rope->pairs == RopePairs::kNeighbours),
      pages_(state.shape(), std::int64_t{n_layers_} * n_seq_slots_, state.needs().ring_pages,
             "rotated keys near the newest token") {
  const std::vector<double>& frequencies = state.options().rope->inv_freq;
  inv_freq_ = DeviceBuffer(frequencies.size() * sizeof(double), "frequencies");
  const Stream stream = Stream::make();
  copy_bytes(inv_freq_.data(), frequencies.data(), inv_freq_.size(), stream);
  stream.synchronize();
}

void LocalKeys::fill(std::int32_t seq_slot, std::int32_t n_tokens, std::int32_t recent, const KvTables& pages,
                     const CudaContext& context) {
  rotate_keys_cuda({.from = pages,
                    .to = pages_.tables(),
                    .from_slot = seq_slot,
                    .to_slot = 0,
                    .to_layer = seq_slot,
                    .to_layer_step = n_seq_slots_,
                    .n_layers = n_layers_,
                    .begin = std::max(0, n_tokens - recent),
                    .end = n_tokens,
                    .ring = pages_.tables().max_pages,
                    .inv_freq = inv_freq_.as<double>(),
                    .neighbours = neighbours_},
                   context);
}

}  // namespace mneme
