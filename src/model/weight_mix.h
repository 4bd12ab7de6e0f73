// Types of a model's matrices in files of one name, for random weights.
#pragma once

#include <cstdint>

#include "src/tensor/dtype.h"

namespace mneme {

struct WeightMix {
  DType most = DType::kBF16;  // all but the exceptions
  // As llama.cpp mixes Q4_K_M: the head, and v and down of half of the layers, in this type. Equal to `most`: no mixture.
  DType better = DType::kBF16;

  static WeightMix all(DType type) { return {type, type}; }
  static WeightMix q4_k_m() { return {DType::kQ4_K, DType::kQ6_K}; }
  // The types of v and down of layer i. Source  use_more_bits of llama-quant.cpp.
  DType of_layer(std::int64_t i, std::int64_t n_layers) const {
    return i < n_layers / 8 || i >= 7 * n_layers / 8 || (i - n_layers / 8) % 3 == 2 ? better : most;
  }
};

}  // namespace mneme
