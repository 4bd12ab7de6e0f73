// Windowed prefill on the device: which rows attend what, and a layer's rotated local keys, with pre-RoPE keys.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/cuda/memory.h"
#include "src/kv/sequence_cache.h"
#include "src/methods/method_state.h"
#include "src/methods/prefill_windows.h"
#include "src/model/cuda/staging.h"
#include "src/model/cuda/window_selection.h"
#include "src/ops/attention/window/attention_window_cuda.h"
#include "src/ops/norm_rope/rope.h"

namespace mneme {

class CudaWindows {
 public:
  // max_rows: per step, with max_sequences prompts.
  CudaWindows(const KvShape& shape, std::int32_t n_heads, const RopeTable& rope, std::int32_t max_rows,
              std::int32_t max_sequences, std::int64_t max_context);

  // begin() starts a step; add() adds its prompts; send() copies them to the device.
  void begin();
  // Adds the last n_rows of `cache` and returns the prompt's index. Counts what the rows attend.
  std::int32_t add(const SequenceCache& cache, MethodState& method, std::int32_t n_rows);
  void send(const Stream& stream);

  // Earlier tokens that a layer of the prompt needs.
  CudaStaging::Earlier earlier(std::int32_t prompt, std::int32_t layer, std::int32_t slot) const;

  // Attention of a prompt's rows. Requires  keys and values are in sequence `slot` and layer `layer` of `tables`.
  struct PromptChunk {
    const void *q = nullptr, *remote_q = nullptr;  // as in attention_window_cuda.h
    void* out = nullptr;
    const KvTables* tables = nullptr;
    std::int32_t layer = 0, slot = 0;
    bool dense = false;
    float scale = 0;
    // For windows that select: the model's layer, its index, the sequence slot; and the pages, if selected units must
    // be fetched from there.
    std::int32_t model_layer = 0, seq_slot = 0;
    LayerKeys keys;
    const KvTables* pages = nullptr;
    StepObserver* observer = nullptr;
  };
  void attend(std::int32_t prompt, const PromptChunk& rows, const CudaContext& context);

  // Before and after the host waits for the step.
  void fetch(const Stream& stream) {
    if (selection_) selection_->fetch(stream);
  }
  void learn() {
    if (selection_) selection_->learn();
  }

  std::size_t bytes() const {
    return blocks_.size() + rotated_.size() + rotated_blocks_.size() + (selection_ ? selection_->bytes() : 0);
  }

 private:
  struct Prompt {
    const Plan* plan = nullptr;
    std::int32_t first = 0, n_rows = 0;
    std::int32_t first_block = 0, n_blocks = 0;
    std::int32_t selects = -1;  // index in selection_
  };
  void rotate_local(const Prompt& p, const PromptChunk& rows, const CudaContext& context);

  KvShape shape_;
  std::int32_t n_heads_;
  const RopeTable& rope_;
  DeviceBuffer blocks_, rotated_, rotated_blocks_, inv_freq_;
  PinnedBuffer host_blocks_;
  KvTables rotated_tables_;
  std::int64_t max_context_;
  std::optional<CudaWindowSelection> selection_;
  std::int32_t n_blocks_ = 0;
  std::vector<Prompt> prompts_;
};

}  // namespace mneme
