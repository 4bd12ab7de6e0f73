// What the windows of a prompt ask for, on the device: running moments of their queries, how far each query lies from
// them, and the weighted sum that is scored. channel_moments.h and window_probe.h are the specification.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/cuda_context.h"
#include "src/kernels/layer_choose_cuda.h"

namespace mneme {

enum class ProbeWeights : std::int32_t { kActivation, kMean, kReversed };  // WindowProbe's

// One chunk of a prompt and one layer. Each window's rows count in the moments before its own weights are made.
//
//   x        [rows, width] bf16, width = heads * D: queries as they stand for what is far
//   windows  [n_windows] in order
//   mean, m2 [width] f64, in and out: of `count` rows before; the chunk's first `known` rows are among these
//   scratch  window_probe_scratch_bytes()
//   probes   [n_windows, KV heads * D] f32 out: the sums, those of a group's heads added up
//
// Numerics  moments of a window in f32 in two passes, merged in f64; sums in f32.
// Async     enqueues; allocates nothing.
struct WindowProbes {
  const void* x = nullptr;
  const ChoiceWindow* windows = nullptr;
  std::int32_t n_windows = 0, n_rows = 0;
  std::int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  double *mean = nullptr, *m2 = nullptr;
  std::int64_t count = 0;
  std::int32_t known = 0;
  ProbeWeights weights = ProbeWeights::kActivation;
  std::byte* scratch = nullptr;
  float* probes = nullptr;
};
std::size_t window_probe_scratch_bytes(std::int32_t n_windows, std::int32_t n_rows, std::int32_t width);
void window_probes_cuda(const WindowProbes& w, const CudaContext& context);

}  // namespace mneme
