// Which weights lie on the device where not all of them fit. The others lie in page-locked host memory, and kernels read
// them there in place, at the speed of the link.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/model/model.h"

namespace mneme {

// Bytes of a layer's matrices in the device's layouts.
struct LayerWeightBytes {
  std::int64_t experts = 0, others = 0;
};

// The first layers' weights lie on the device. Norms, biases, the embedding and the head always do.
struct WeightPlacement {
  std::int64_t layers = 0;         // with all but their experts on the device
  std::int64_t expert_layers = 0;  // with their experts there too; at most `layers`
  bool experts_on_host(std::int64_t layer) const { return layer >= expert_layers; }
  bool others_on_host(std::int64_t layer) const { return layer >= layers; }
};

// The first n layers whole.
WeightPlacement first_layers(std::int64_t n);
// What fits into `room` bytes: experts go to the host first, those of the last layers before others, because a step reads
// few of them. Then whole layers, the last ones first.
WeightPlacement fitting_layers(std::span<const LayerWeightBytes> layers, std::int64_t room);

std::vector<LayerWeightBytes> layer_weight_bytes(const Model& model);
// Bytes of the embedding and the head, in the device's layouts.
std::int64_t outer_weight_bytes(const Model& model);
// Upper bound of the bytes of a step's activations, for so many rows and logits, within a third.
std::int64_t activation_estimate(const ModelConfig& config, std::int64_t rows, std::int64_t sequences);

}  // namespace mneme
