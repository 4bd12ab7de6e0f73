// Probes of a prompt's windows, on the device: running moments of the queries, each query's distance from them, and the
// weighted sum that is scored. channel_moments.h and window_probe.h are the specifications.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"
#include "src/selection/layer/layer_select_cuda.h"

namespace mneme {

enum class ProbeWeights : std::int32_t { kActivation, kMean, kReversed };  // as WindowProbe

// One chunk of a prompt and one layer. A window's rows are added to the moments before its own weights are computed.
//
//   x        [rows, width] bf16, width = heads * D: queries rotated for the remote part
//   windows  [n_windows] in order
//   mean, m2 [width] f64, in and out: over `count` earlier rows, among which are the chunk's first `known` rows
//   scratch  window_probe_scratch_bytes()
//   probes   [n_windows, KV heads * D] f32 out: the weighted sums, added over each group's heads
//   whole    [n_windows, width] f32 out: not added up; or null
//
// Numerics  moments of a window in f32 in two passes, merged in f64; sums in f32.
// Async     enqueues; allocates nothing.
struct WindowProbes {
  const void* x = nullptr;
  const SelectionWindow* windows = nullptr;
  std::int32_t n_windows = 0, n_rows = 0;
  std::int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  double *mean = nullptr, *m2 = nullptr;
  std::int64_t count = 0;
  std::int32_t known = 0;
  ProbeWeights weights = ProbeWeights::kActivation;
  std::byte* scratch = nullptr;
  float *probes = nullptr, *whole = nullptr;
};
std::size_t window_probe_scratch_bytes(std::int32_t n_windows, std::int32_t n_rows, std::int32_t width);
void window_probes_cuda(const WindowProbes& w, const CudaContext& context);

}  // namespace mneme
