#include "src/model/cuda/delta/delta.h"

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/model/shapes.h"

namespace mneme {
namespace {

constexpr std::int32_t kMoreSlots = 2;  // than sequences of a step: for copies made between steps

DeltaShape shape_of(const ModelConfig& config) {
  const DeltaConfig& d = config.delta;
  const DeltaShape shape{
      .n_k_heads = d.n_k_heads, .n_v_heads = d.n_v_heads, .d_k = d.d_k, .d_v = d.d_v, .taps = d.taps, .tiled = d.tiled};
  if (!delta_shape_on_device(shape))
    fail(ErrorKind::kUnsupported,
         "--device cuda: linear attention with heads of {} and {} and a convolution of {}: the kernels take heads of "
         "multiples of 4 up to {} and convolutions of 2 to {}; expected such a model, or --device cpu",
         d.d_k, d.d_v, d.taps, kMaxDeltaHeadCuda, kMaxDeltaTapsCuda);
  return shape;
}

}  // namespace

CudaDelta::CudaDelta(const Model& model, std::int32_t max_rows, std::int32_t max_sequences, const Stream& stream)
    : shape_(shape_of(model.config())),
      norm_eps_(static_cast<float>(model.config().rms_eps)),
      layer_floats_(state_floats_of(model.config().delta)) {
  const std::size_t state_bytes = model.kv_shape(DType::kBF16).state_bytes, rows = static_cast<std::size_t>(max_rows);
  slot_stride_ = static_cast<std::int64_t>(state_bytes / sizeof(float));
  states_ = std::make_shared<CudaStates>(state_bytes, max_sequences + kMoreSlots, stream);
  const DeltaScratchBytes bytes = delta_scratch_bytes(shape_, max_rows);
  ArenaLayout arrays;
  arrays.add(in_, rows * static_cast<std::size_t>(width()) * sizeof(float));
  arrays.add(y_, rows * static_cast<std::size_t>(shape_.value_width()) * 2);
  arrays.add(scratch_.convolved, bytes.convolved);
  arrays.add(scratch_.gates, bytes.gates);
  arrays.add(scratch_.out, bytes.out);
  arrays.add(scratch_.tiles, bytes.tiles);
  arena_ = DeviceBuffer(arrays.total(), "activations of linear attention (max_batched_tokens makes them smaller)");
  arrays.assign(arena_.data());
  set_bytes(arena_.data(), 0, arena_.size(), stream);
}

void CudaDelta::begin(std::span<const SequenceRows> sequences, std::int32_t* state_slots) {
  states_->begin_step();
  spans_.clear();
  std::int32_t row = 0;
  for (const SequenceRows& s : sequences) {
    if (s.n_rows == 0) continue;
    RecurrentStates& states = s.cache->states();
    const std::int32_t before = s.cache->length() - s.n_rows;
    MNEME_CHECK(states.length() == before, "a state of {} tokens before row {}", states.length(), before);
    const std::int32_t slot = states_->slot_of(states.begin_write());
    state_slots[row] = slot;
    if (s.n_rows == 1 && !spans_.empty() && spans_.back().single)
      ++spans_.back().n;
    else
      spans_.push_back({.first = row, .n = s.n_rows, .slot = slot, .position = before, .single = s.n_rows == 1});
    row += s.n_rows;
  }
}

void CudaDelta::end(std::span<const SequenceRows> sequences) {
  for (const SequenceRows& s : sequences)
    if (s.n_rows > 0) s.cache->states().end_write(s.cache->length());
}

DeltaLayerCuda CudaDelta::layer(const DeltaPlan& plan, const CudaLayerWeights& w) const {
  return {.shape = shape_,
          .parameters = {.conv = w.delta.conv, .a = w.delta.a, .dt = w.delta.dt},
          .norm = w.delta.norm,
          .norm_eps = norm_eps_,
          .states = states_->data() + plan.state_layer * layer_floats_,
          .slot_stride = slot_stride_};
}

// Rows from `row` on.
DeltaRowsCuda CudaDelta::from(std::int32_t row) const {
  const float* x = in_ + std::int64_t{row} * width();
  const float* z = x + shape_.channels();
  const float* beta = z + shape_.value_width();
  return {.x = x,
          .z = z,
          .bf16 = false,
          .x_stride = width(),
          .z_stride = width(),
          .beta = beta,
          .alpha = beta + heads(),
          .gate_stride = width(),
          .y = y_ + std::int64_t{row} * shape_.value_width() * 2};
}

void CudaDelta::rows(const DeltaPlan& plan, const CudaLayerWeights& w, std::int32_t n, const std::int32_t* state_slots,
                     const CudaContext& context) const {
  delta_step_cuda(layer(plan, w), from(0), state_slots, n, scratch_, context);
}

void CudaDelta::spans(const DeltaPlan& plan, const CudaLayerWeights& w, const std::int32_t* state_slots,
                      const CudaContext& context) const {
  const DeltaLayerCuda of = layer(plan, w);
  for (const Span& s : spans_) {
    if (s.single)
      delta_step_cuda(of, from(s.first), state_slots + s.first, s.n, scratch_, context);
    else
      delta_prompt_cuda(of, from(s.first), s.slot, s.n, s.position, DeltaForm::kChunks, scratch_, context);
  }
}

}  // namespace mneme
