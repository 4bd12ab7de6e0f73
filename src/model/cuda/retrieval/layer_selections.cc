#include "src/model/cuda/retrieval/layer_selections.h"

#include <cstring>

namespace mneme {
namespace {

constexpr std::int64_t kChunkTokens = std::int64_t{kKeyChunkPages} * kPageTokens;

}  // namespace

LayerSelections::LayerSelections(const RetrievalState& state, const KvTables& pages) : state_(state), pages_(pages) {
  const CudaRetrievalOptions& options = state.options();
  const auto seq_slots = static_cast<std::size_t>(options.n_seq_slots),
             layers = static_cast<std::size_t>(state.n_selecting()), doubles = seq_slots * layers * sizeof(double);
  ArenaLayout arrays;
  arrays.add(cuts_, seq_slots * sizeof(LayerCut));
  arrays.add(later_, doubles);
  arrays.add(thetas_, doubles);
  arrays.add(pools_, seq_slots * sizeof(double));
  arrays.add(ranks_, static_cast<std::size_t>(state.n_rows()) * rank_stride() * 4);
  shares_ = DeviceBuffer(arrays.total(), "scores of pages");
  arrays.assign(shares_.data());
  host_cuts_ = PinnedBuffer(seq_slots * (sizeof(LayerCut) + layers * sizeof(double)));
  host_thetas_ = PinnedBuffer(doubles);
  if (options.pages_on_device) return;
  chunk_bytes_ = key_chunk_bytes(state.n_selecting(), pages.n_kv_heads, pages.head_dim);
  max_chunks_ = static_cast<std::int32_t>((options.max_context + kChunkTokens - 1) / kChunkTokens);
  n_chunks_.resize(seq_slots);
  table_ = DeviceBuffer(seq_slots * static_cast<std::size_t>(max_chunks_) * sizeof(std::byte*), "tables of keys");
}

LayerKeys LayerSelections::keys(std::int32_t layer) const {
  if (!copies_keys()) return {.pages = pages_, .layer = layer};
  return {
      .pages = pages_, .layer = state_.slot_layer(layer), .chunks = table_.as<std::byte*>(), .max_chunks = max_chunks_};
}

void LayerSelections::reserve(std::int32_t seq_slot, std::int64_t n_tokens, const Stream& stream) {
  if (!copies_keys()) return;
  std::int32_t& n = n_chunks_[static_cast<std::size_t>(seq_slot)];
  for (; n * kChunkTokens < n_tokens; ++n) {
    std::byte* chunk = chunks_.emplace_back(chunk_bytes_, "keys of sequences in host memory").data();
    copy_bytes(table_.as<std::byte*>() + std::int64_t{seq_slot} * max_chunks_ + n, &chunk, sizeof(chunk), stream);
    stream.synchronize();  // `chunk` is a local variable
  }
}

void LayerSelections::copy_keys(std::int32_t layer, std::int32_t seq_slot, const LayerPages& from, std::int32_t first,
                                std::int32_t stop, const CudaContext& context) {
  copy_keys_cuda(from.tables, from.slot, from.layer, keys(layer), seq_slot, first, stop, context);
}

void LayerSelections::send_cut(MethodState& method, std::int32_t seq_slot, const Stream& stream) {
  const std::int32_t layers = state_.n_selecting();
  const std::size_t bytes = static_cast<std::size_t>(layers) * sizeof(double);
  std::byte* here = host_cuts_.data() + static_cast<std::size_t>(seq_slot) * (sizeof(LayerCut) + bytes);
  auto* later = reinterpret_cast<double*>(here);
  LayerCut cut;
  if (const EntropyCut* shares = method.cut()) {
    cut = {.k = method.plan().layer_selection->n_units, .n_layers = layers, .reversed = shares->reversed()};
    for (std::int32_t l = 0; l < layers; ++l) later[l] = shares->later(l);
    copy_bytes(later_ + std::int64_t{seq_slot} * layers, later, bytes, stream);
  }
  std::memcpy(here + bytes, &cut, sizeof(cut));
  copy_bytes(cuts_ + seq_slot, here + bytes, sizeof(cut), stream);
}

void LayerSelections::select(std::int32_t layer, const SlotRows& rows, const void* remote_q, std::int32_t* remote_to,
                             const CudaContext& context) {
  select_layer_cuda({.keys = keys(layer),
                     .rows = rows,
                     .remote_q = remote_q,
                     .ranks = ranks_,
                     .rank_stride = static_cast<std::int64_t>(rank_stride()),
                     .remote_to = remote_to,
                     .cuts = cuts_,
                     .later = later_,
                     .pools = pools_,
                     .thetas = thetas_},
                    state_.device_cache(), state_.slot_layer(layer), context);
}

void LayerSelections::fetch(const Stream& stream) {
  copy_bytes(host_thetas_.data(), thetas_, host_thetas_.size(), stream);
}

}  // namespace mneme
