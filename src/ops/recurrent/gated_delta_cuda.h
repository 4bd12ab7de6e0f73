// Gated DeltaNet on the device, the gated norm of its output included. gated_delta.h is the specification of all else:
//
//   y = o / sqrt(mean(o^2) + eps) * norm * silu(z)      o: `out` of gated_delta.h; the mean is over a head's d_v values
//
// All pointers are device memory, addresses and strides in bytes multiples of 16.
//
// Chunks    begin at positions divisible by kDeltaChunkCuda, and those of fewer than kFewDeltaRows rows go row by row: bits
//           depend on where a prompt is cut only if it is cut within a chunk. DeltaForm::kRows: they never do.
// Numerics  sums in f32. Products of chunks are of operands rounded to tf32: RMS errors of 4e-4 of y; row by row 1e-6.
// NaN       reaches its own and later rows of its sequence, and earlier ones of its chunk.
// Async     all enqueue; nothing allocates or waits for the host.
// Source    chunks in the WY form of arXiv 2406.06484
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"
#include "src/ops/recurrent/gated_delta.h"

namespace mneme {

inline constexpr std::int32_t kDeltaChunkCuda = 64, kFewDeltaRows = 8;
inline constexpr std::int32_t kMaxDeltaHeadCuda = 128, kMaxDeltaTapsCuda = 4;
inline constexpr std::int32_t kMaxDeltaRowsCuda = 2048;  // computed together: more of a prompt are several launches

// Whether the kernels take a shape: d_k and d_v multiples of 4 up to kMaxDeltaHeadCuda, 2 to kMaxDeltaTapsCuda taps.
bool delta_shape_on_device(const DeltaShape& shape);
// Requires  that, and n <= kMaxDeltaRowsCuda.
void check_delta_step(const DeltaShape& shape, std::int32_t n);

// A layer: its weights, and its states of all slots. A slot's [inputs | state] is as GatedDeltaRows has them.
struct DeltaLayerCuda {
  DeltaShape shape;
  DeltaParameters parameters;
  const float* norm = nullptr;  // [d_v]
  float norm_eps = 0;
  float* states = nullptr;
  std::int64_t slot_stride = 0;  // floats
};

// Rows of x, gates and z; x, z f32 or bf16, beta and alpha f32. Strides in elements.
struct DeltaRowsCuda {
  const void *x = nullptr, *z = nullptr;  // [n, channels], [n, value width]
  bool bf16 = false;
  std::int64_t x_stride = 0, z_stride = 0;
  const float *beta = nullptr, *alpha = nullptr;  // [n, n_v_heads]
  std::int64_t gate_stride = 0;
  void* y = nullptr;  // [n, value width] bf16
};

struct DeltaScratchCuda {
  float* convolved = nullptr;  // [rows, channels]: q, k normalised, v
  float* gates = nullptr;      // [rows, 2 n_v_heads]: g, b
  float* out = nullptr;        // [rows, value width]
  float* tiles = nullptr;      // [chunks, n_v_heads, kDeltaTileFloats]
};
// Of a value head's chunk: T b, P (gated_delta_chunks_cuda.cu), e^G, e^{G_last - G}.
inline constexpr std::int64_t kDeltaTileFloats = 2 * kDeltaChunkCuda * kDeltaChunkCuda + 2 * kDeltaChunkCuda;
// Bytes of each array, for steps of up to n rows.
struct DeltaScratchBytes {
  std::size_t convolved = 0, gates = 0, out = 0, tiles = 0;
};
DeltaScratchBytes delta_scratch_bytes(const DeltaShape& shape, std::int32_t n);

// One row of each of n sequences. slots [n] i32; -1: the row has zeros for y, and no state.
// Requires  no slot twice; n rows of scratch.
void delta_step_cuda(const DeltaLayerCuda& layer, const DeltaRowsCuda& rows, const std::int32_t* slots, std::int32_t n,
                     const DeltaScratchCuda& scratch, const CudaContext& context);

enum class DeltaForm : std::uint8_t { kChunks, kRows };

// Rows of one sequence, whose first one is at `position`. Devices with less shared memory than kChunks needs (those
// before Hopper) go row by row.
// Requires  scratch of min(n, kMaxDeltaRowsCuda) rows.
void delta_prompt_cuda(const DeltaLayerCuda& layer, const DeltaRowsCuda& rows, std::int32_t slot, std::int32_t n,
                       std::int64_t position, DeltaForm form, const DeltaScratchCuda& scratch,
                       const CudaContext& context);

}  // namespace mneme
