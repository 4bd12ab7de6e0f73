// Which layers of a model select, and which attend everything; both are numbered.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "src/cuda/memory.h"

namespace mneme {

class RetrievalLayers {
 public:
  // dense: by layer.
  explicit RetrievalLayers(const std::vector<bool>& dense);

  std::int32_t n_selecting() const { return static_cast<std::int32_t>(selecting_.size()); }
  std::int32_t n_dense() const { return static_cast<std::int32_t>(numbers_.size() - selecting_.size()); }
  // Index among the layers that select; -1: the layer attends everything.
  std::int32_t slot_layer(std::int32_t layer) const { return std::max(numbers_[static_cast<std::size_t>(layer)], -1); }
  // Index among the layers that attend everything. Requires  it does.
  std::int32_t dense_number(std::int32_t layer) const { return -1 - numbers_[static_cast<std::size_t>(layer)]; }
  // The model's layers by their index among those that select.
  std::span<const std::int32_t> selecting() const { return selecting_; }
  // On the device: of all layers the index among those that select, or -1 - that among the others; and selecting().
  const std::int32_t* numbers_on_device() const { return on_device_.as<std::int32_t>(); }
  const std::int32_t* selecting_on_device() const { return on_device_.as<std::int32_t>() + numbers_.size(); }

 private:
  std::vector<std::int32_t> numbers_, selecting_;
  DeviceBuffer on_device_;
};

}  // namespace mneme
