// What the windows of prompts select, on the device, where a method decides for a whole layer: their probes out of
// running moments, and the pages that score highest. The moments are a sequence's MethodState's: they go to the device
// when a step begins and come back when it is over, so that forks and sessions know of them.
#pragma once

#include <cstdint>
#include <vector>

#include "src/attention/method_state.h"
#include "src/attention/prefill_windows.h"
#include "src/cache/page_pool.h"
#include "src/device/memory.h"
#include "src/kernels/layer_choose_cuda.h"
#include "src/kernels/window_probe_cuda.h"

namespace mneme {

class CudaWindowChoice {
 public:
  CudaWindowChoice(const KvShape& shape, std::int32_t n_heads, std::int64_t max_context);

  // A step begins. Then its prompts, each with its windows in order, and what was added goes to the device.
  void begin();
  std::int32_t add(MethodState& method, std::int32_t first, std::int32_t n_rows);
  void add_window(const PrefillWindowRows& w);  // of the prompt that was added last
  void send(const Stream& stream);

  struct Layer {
    std::int32_t layer = 0;       // of the model
    const void* far_q = nullptr;  // [rows, heads * D] of the prompt's chunk
    LayerKeys keys;
    std::int32_t place = 0;
    float turnover = -1;  // see ChooseWindows
  };
  // Units of the windows, which units() has until the next call.
  void choose(std::int32_t prompt, const Layer& l, const CudaContext& context);
  // Those that lie before page `there` come out of `pages` into a table of one sequence and layer.
  void bring(std::int32_t prompt, const Layer& l, const KvTables& pages, const KvTables& to, std::int32_t there,
             const CudaContext& context);
  const std::int32_t* units() const { return units_.as<std::int32_t>(); }
  const std::int32_t* n_units() const { return n_units_.as<std::int32_t>(); }
  std::int32_t unit_stride() const { return unit_stride_; }

  // Around the host's waiting for the step: what layers know of the prompts' queries now.
  void fetch(const Stream& stream);
  void learn();

  std::size_t bytes() const;

 private:
  struct Prompt {
    MethodState* method = nullptr;
    std::int32_t first = 0, n_rows = 0, known = 0;
    std::int32_t first_window = 0, n_windows = 0, n_candidates = 0;
    std::int64_t count = 0;
  };
  std::size_t width() const { return static_cast<std::size_t>(n_heads_) * static_cast<std::size_t>(shape_.head_dim); }
  // Doubles of a prompt: [layers] of means, then squares.
  std::size_t moments_of(std::int32_t layer) const { return static_cast<std::size_t>(layer) * 2 * width(); }
  std::size_t moments_each() const { return moments_of(shape_.n_layers); }

  KvShape shape_;
  std::int32_t n_heads_;
  std::int32_t max_pages_, rank_stride_, unit_stride_ = 0, stamp_ = 0;
  std::vector<Prompt> prompts_;
  std::vector<ChoiceWindow> windows_;
  DeviceBuffer windows_there_, moments_, scratch_, probes_, ranks_, units_, n_units_, stamps_, list_;
  PinnedBuffer host_windows_, host_moments_;
};

}  // namespace mneme
