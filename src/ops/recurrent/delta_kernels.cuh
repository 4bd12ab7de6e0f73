// What the kernels of Gated DeltaNet share.
#pragma once

#include "src/cuda/common.cuh"
#include "src/ops/recurrent/gated_delta_cuda.h"

namespace mneme {

// DeltaShape as kernels read it.
struct DeltaSizes {
  std::int32_t n_k_heads, n_v_heads, d_k, d_v, taps;
  bool tiled;

  explicit DeltaSizes(const DeltaShape& s)
      : n_k_heads(static_cast<std::int32_t>(s.n_k_heads)),
        n_v_heads(static_cast<std::int32_t>(s.n_v_heads)),
        d_k(static_cast<std::int32_t>(s.d_k)),
        d_v(static_cast<std::int32_t>(s.d_v)),
        taps(static_cast<std::int32_t>(s.taps)),
        tiled(s.tiled) {}

  __device__ __forceinline__ int group() const { return n_v_heads / n_k_heads; }
  __device__ __forceinline__ int key_head(int v_head) const { return tiled ? v_head % n_k_heads : v_head / group(); }
  // The i-th value head of a key head.
  __device__ __forceinline__ int value_head(int key_head, int i) const {
    return tiled ? key_head + i * n_k_heads : key_head * group() + i;
  }
  __device__ __forceinline__ int key_width() const { return n_k_heads * d_k; }
  __device__ __forceinline__ int value_width() const { return n_v_heads * d_v; }
  __device__ __forceinline__ int channels() const { return 2 * key_width() + value_width(); }
  __device__ __forceinline__ std::int64_t input_floats() const { return std::int64_t{taps - 1} * channels(); }
  __device__ __forceinline__ std::int64_t state_at(int v_head) const {
    return input_floats() + std::int64_t{v_head} * d_k * d_v;
  }
};

// A launch's rows begin at the first of every array.
struct DeltaKernelArgs {
  DeltaSizes s;
  DeltaParameters parameters;
  const float* norm;
  float norm_eps;
  float* states;
  std::int64_t slot_stride;
  const std::int32_t* slots;  // of a step's rows; null: all rows are slot's
  std::int32_t slot;
  std::int32_t n;
  DeltaRowsCuda rows;
  DeltaScratchCuda scratch;

  __device__ __forceinline__ int slot_of(int sequence) const { return slots == nullptr ? slot : slots[sequence]; }
  __device__ __forceinline__ float* state_of(int of_slot) const { return states + of_slot * slot_stride; }
};

// Chunks of a launch's rows, the first of which is row `offset` of its chunk: T and P of all, then the rows of `out`.
void delta_chunks_cuda(const DeltaKernelArgs& args, std::int32_t offset, const CudaContext& context);
// Whether the device has the shared memory for them.
bool delta_chunks_on_device();

}  // namespace mneme
