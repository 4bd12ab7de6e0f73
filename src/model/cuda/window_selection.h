// Selections of prompt windows on the device, for methods with selection per layer: probes from running moments, and
// the pages with the highest scores. The moments belong to the sequence's MethodState: they are copied to the device
// when a step starts and back when it is over, so that forks and sessions have them.
#pragma once

#include <cstdint>
#include <vector>

#include "src/cuda/mirrored_buffer.h"
#include "src/kv/page_pool.h"
#include "src/methods/method_state.h"
#include "src/methods/prefill_windows.h"
#include "src/model/cuda/retrieval/step_observer.h"
#include "src/selection/layer/layer_select_cuda.h"
#include "src/selection/layer/window_probe_cuda.h"

namespace mneme {

class CudaWindowSelection {
 public:
  CudaWindowSelection(const KvShape& shape, std::int32_t n_heads, std::int64_t max_context);

  // begin() starts a step; add() and add_window() add its prompts and their windows in order; send() copies them to the
  // device.
  void begin();
  std::int32_t add(MethodState& method, std::int32_t first, std::int32_t n_rows);
  void add_window(const WindowSpan& w);  // of the prompt added last
  void send(const Stream& stream);

  struct Layer {
    std::int32_t layer = 0;          // of the model
    const void* remote_q = nullptr;  // [rows, heads * D] of the prompt's chunk
    LayerKeys keys;
    std::int32_t seq_slot = 0;
    StepObserver* observer = nullptr;
  };
  // Selects units for the windows; valid in units() until the next call.
  void select(std::int32_t prompt, const Layer& l, const CudaContext& context);
  // Fetches those before page `there` from `pages` into a table of one sequence and layer.
  void fetch(std::int32_t prompt, const Layer& l, const KvTables& pages, const KvTables& to, std::int32_t there,
             const CudaContext& context);
  const std::int32_t* units() const { return units_.as<std::int32_t>(); }
  const std::int32_t* n_units() const { return n_units_.as<std::int32_t>(); }
  std::int32_t unit_stride() const { return unit_stride_; }

  // Before and after the host waits for the step: moments of the prompts' queries.
  void fetch(const Stream& stream);
  void learn();

  std::size_t bytes() const;

 private:
  struct Prompt {
    MethodState* method = nullptr;
    std::int32_t first = 0, n_rows = 0, known = 0;
    std::int32_t first_window = 0, n_windows = 0, n_candidates = 0;
    std::int64_t count = 0;
    bool shares = false;  // layers share a budget in prefill too (EntropyShare::in_prefill)
  };
  std::size_t width() const { return static_cast<std::size_t>(n_heads_) * static_cast<std::size_t>(shape_.head_dim); }
  // Doubles of a prompt: [layers] of means, then squares.
  std::size_t moments_of(std::int32_t layer) const { return static_cast<std::size_t>(layer) * 2 * width(); }
  std::size_t moments_each() const { return moments_of(shape_.n_layers); }
  WindowCut cut_of(const Prompt& p, std::int32_t layer) const;
  void learn_shares(const Prompt& p) const;
  // Of all windows of the step: [layers][windows].
  std::size_t share_at(const Prompt& p, std::int32_t layer) const {
    return static_cast<std::size_t>(layer) * windows_.size() + static_cast<std::size_t>(p.first_window);
  }

  KvShape shape_;
  std::int32_t n_heads_;
  std::int32_t max_pages_, rank_stride_, unit_stride_ = 0, stamp_ = 0;
  std::vector<Prompt> prompts_;
  std::vector<SelectionWindow> windows_;
  MirroredBuffer windows_sent_, moments_;
  DeviceBuffer scratch_, probes_, ranks_, units_, n_units_, stamps_, list_;
  // For prompts whose layers share a budget.
  DeviceBuffer whole_, pools_;
  MirroredBuffer shares_;
};

}  // namespace mneme
