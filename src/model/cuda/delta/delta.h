// Layers with linear attention (Gated DeltaNet) on the device: the states of a step's sequences, and what their kernels
// read and write between the projections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/formats/model_plan.h"
#include "src/model/cuda/delta/states.h"
#include "src/model/cuda/weights.h"
#include "src/model/model.h"
#include "src/ops/recurrent/gated_delta_cuda.h"

namespace mneme {

class CudaDelta {
 public:
  // Errors  kUnsupported: a shape that the kernels do not take. kResource.
  CudaDelta(const Model& model, std::int32_t max_rows, std::int32_t max_sequences, const Stream& stream);

  const std::shared_ptr<CudaStates>& states() const { return states_; }

  // ---- a step
  // Gives the sequences' states slots on the device. state_slots: of every row of a step with one row a sequence; of the
  // others, of the rows that are their sequence's only ones.
  void begin(std::span<const SequenceRows> sequences, std::int32_t* state_slots);
  // Once the step is done.
  static void end(std::span<const SequenceRows> sequences);

  // [n, width()] f32: x, z, beta and alpha beside each other; the layer's projections write it.
  float* in() const { return in_; }
  std::int32_t width() const {
    return static_cast<std::int32_t>(shape_.channels() + shape_.value_width()) + 2 * heads();
  }
  const void* y() const { return y_; }  // [n, value width] bf16

  // One row of each of n sequences.
  void rows(const DeltaPlan& plan, const CudaLayerWeights& w, std::int32_t n, const std::int32_t* state_slots,
            const CudaContext& context) const;
  // The rows passed to begin().
  void spans(const DeltaPlan& plan, const CudaLayerWeights& w, const std::int32_t* state_slots,
             const CudaContext& context) const;

  std::size_t bytes() const { return arena_.size() + states_->bytes(); }

 private:
  struct Span {  // rows of a sequence, or of several with one each
    std::int32_t first = 0, n = 0, slot = -1;
    std::int64_t position = 0;
    bool single = false;
  };
  std::int32_t heads() const { return static_cast<std::int32_t>(shape_.n_v_heads); }
  DeltaLayerCuda layer(const DeltaPlan& plan, const CudaLayerWeights& w) const;
  DeltaRowsCuda from(std::int32_t row) const;

  DeltaShape shape_;
  float norm_eps_;
  std::int64_t layer_floats_;  // of a layer's part of a state
  std::int64_t slot_stride_;
  std::shared_ptr<CudaStates> states_;
  DeviceBuffer arena_;
  float* in_ = nullptr;
  std::byte* y_ = nullptr;
  DeltaScratchCuda scratch_;
  std::vector<Span> spans_;
};

}  // namespace mneme
