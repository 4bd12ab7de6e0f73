#include "src/model/weight_placement.h"

#include <algorithm>

#include "src/model/shapes.h"
#include "src/ops/gemm/device/device_matrix.h"

namespace mneme {
namespace {

std::int64_t device_bytes(const ConstTensorView& view) {
  const DType type = is_quantised(view.dtype()) ? view.dtype() : DType::kBF16;
  const DeviceMatrix m{.values = nullptr, .dtype = type, .n_out = view.dim(0), .n_in = view.dim(1)};
  return static_cast<std::int64_t>(m.bytes());
}

std::int64_t device_bytes(std::initializer_list<const WeightMatrix*> matrices) {
  std::int64_t n = 0;
  for (const WeightMatrix* w : matrices)
    if (w->n_out() > 0) n += device_bytes(w->view());
  return n;
}

}  // namespace

WeightPlacement first_layers(std::int64_t n) {
  return {.layers = n, .expert_layers = n};
}

WeightPlacement fitting_layers(std::span<const LayerWeightBytes> layers, std::int64_t room) {
  WeightPlacement p;
  for (const LayerWeightBytes& l : layers) {
    if (l.others > room) return p;
    room -= l.others;
    ++p.layers;
  }
  for (const LayerWeightBytes& l : layers) {
    if (l.experts > room) return p;
    room -= l.experts;
    ++p.expert_layers;
  }
  return p;
}

std::vector<LayerWeightBytes> layer_weight_bytes(const Model& model) {
  std::vector<LayerWeightBytes> all;
  for (const LayerWeights& w : model.layers()) {
    LayerWeightBytes& bytes = all.emplace_back();
    bytes.others =
        device_bytes({&w.q, &w.k, &w.v, &w.o, &w.q_gate, &w.gate, &w.up, &w.down, &w.shared.gate, &w.shared.up,
                      &w.shared.down, &w.delta.qkv, &w.delta.z, &w.delta.beta, &w.delta.alpha, &w.delta.out});
    for (const ExpertWeights& e : w.experts) bytes.experts += device_bytes({&e.gate, &e.up, &e.down});
  }
  return all;
}

std::int64_t outer_weight_bytes(const Model& model) {
  const std::int64_t embedding = device_bytes(model.embedding());
  return model.config().tied_embeddings ? embedding : embedding + device_bytes(model.head().view());
}

std::int64_t activation_estimate(const ModelConfig& c, std::int64_t rows, std::int64_t sequences) {
  const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  // f32: the residual and its norm; q, k, v and what was attended; gate, up and their product.
  const std::int64_t feed_forward = c.experts.n > 0 ? c.experts.n + 2 * c.hidden + 3 * c.experts.ffn : 3 * c.ffn;
  // Linear attention: its projections, the convolution, the output, and T and P of each head's chunk of 64.
  const DeltaConfig& d = c.delta;
  const std::int64_t delta = c.n_state_layers() == 0 ? 0 : 2 * d.channels() + 4 * d.value_width() + 132 * d.n_v_heads;
  const std::int64_t row =
      2 * c.hidden + (c.output_gate ? 3 : 2) * q + 2 * kv + feed_forward + delta + 3 * c.experts.shared;
  // Beside it the log-sum-exp of every head, positions and caches of the rows, and the lists of runs of a short prompt.
  const std::int64_t lists = rows * (4 * c.n_heads + 16) + 4096;
  const std::int64_t states = static_cast<std::int64_t>(kv_shape_of(c, DType::kBF16).state_bytes) * (sequences + 2);
  return 4 * (rows * row + sequences * (c.vocab + c.hidden)) + lists + states;
}

}  // namespace mneme
