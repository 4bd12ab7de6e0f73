// Prompts that are read in windows, on the device: which rows see what, and a layer's keys near them turned, where they
// are stored before RoPE.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/attention/method_state.h"
#include "src/attention/prefill_windows.h"
#include "src/cache/sequence_cache.h"
#include "src/device/memory.h"
#include "src/kernels/attention_window_cuda.h"
#include "src/kernels/rope.h"
#include "src/model/cuda_staging.h"
#include "src/model/cuda_window_choice.h"

namespace mneme {

class CudaWindows {
 public:
  // max_rows: of a step, with max_sequences prompts in it.
  CudaWindows(const KvShape& shape, std::int32_t n_heads, const RopeTable& rope, std::int32_t max_rows,
              std::int32_t max_sequences, std::int64_t max_context);

  // A step begins. Then its prompts, and what was added goes to the device.
  void begin();
  // The last n_rows of `cache`. Returns its number. Counts what its rows attend.
  std::int32_t add(const SequenceCache& cache, MethodState& method, std::int32_t n_rows);
  void send(const Stream& stream);

  // What a layer of the prompt must have of earlier tokens.
  CudaStaging::Earlier earlier(std::int32_t prompt, std::int32_t layer, std::int32_t slot) const;

  // The attention of a prompt's rows, whose keys and values are there: in sequence `slot` and layer `layer` of
  // `tables`.
  struct Rows {
    const void *q = nullptr, *far_q = nullptr;  // as attention_window_cuda.h has them
    void* out = nullptr;
    const KvTables* tables = nullptr;
    std::int32_t layer = 0, slot = 0;
    bool dense = false;
    float scale = 0;
    // Where windows select: the layer of the model, what stands for its pages, the sequence's place; and its pages, if
    // selected ones must come from there.
    std::int32_t model_layer = 0, place = 0;
    LayerKeys keys;
    const KvTables* pages = nullptr;
    float turnover = -1;  // see ChooseWindows
  };
  void attend(std::int32_t prompt, const Rows& rows, const CudaContext& context);

  // Around the host's waiting for the step.
  void fetch(const Stream& stream) {
    if (choice_) choice_->fetch(stream);
  }
  void learn() {
    if (choice_) choice_->learn();
  }

  std::size_t bytes() const {
    return blocks_.size() + turned_.size() + turned_blocks_.size() + (choice_ ? choice_->bytes() : 0);
  }

 private:
  struct Prompt {
    const Plan* plan = nullptr;
    std::int32_t first = 0, n_rows = 0;
    std::int32_t first_block = 0, n_blocks = 0;
    std::int32_t chooses = -1;  // number in choice_
  };
  void turn_near(const Prompt& p, const Rows& rows, const CudaContext& context);

  KvShape shape_;
  std::int32_t n_heads_;
  const RopeTable& rope_;
  DeviceBuffer blocks_, turned_, turned_blocks_, inv_freq_;
  PinnedBuffer host_blocks_;
  KvTables turned_tables_;
  std::int64_t max_context_;
  std::optional<CudaWindowChoice> choice_;
  std::int32_t n_blocks_ = 0;
  std::vector<Prompt> prompts_;
};

}  // namespace mneme
