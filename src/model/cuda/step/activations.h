// Device memory of a step's rows between kernels, and how its kernels are launched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"
#include "src/cuda/memory.h"
#include "src/formats/model_config.h"
#include "src/model/cuda/step_phases.h"

namespace mneme {

struct StepLaunch {
  Stream stream;
  PhaseClock* phases = nullptr;  // of the current step, where it is timed

  CudaContext serial() const { return {.stream = stream.get()}; }
  CudaContext overlapped() const {
    return {.stream = stream.get(), .order = phases != nullptr ? LaunchOrder::kSerial : LaunchOrder::kOverlapped};
  }
  void lap(StepPhase phase) const {
    if (phases != nullptr) phases->lap(phase, stream);
  }
};

// Arrays of rows; those of bf16 are bytes. Widths are the model's.
struct CudaActivations {
  float* residual = nullptr;  // [rows, hidden]
  std::byte* normed = nullptr;
  // DeferredNorm::sums of `normed`: of embeddings, and behind every other residual.
  float *sums_embed = nullptr, *sums = nullptr;
  std::byte* qkv = nullptr;  // of many rows;
  float* qkv_f32 = nullptr;  // of few
  std::byte *q = nullptr, *remote_q = nullptr, *attended = nullptr;
  float* output_gate = nullptr;                         // [rows, heads * D], where attention's output has one
  std::byte *gate_up = nullptr, *ffn_hidden = nullptr;  // [rows, 2 ffn], [rows, ffn]
  float* block_out = nullptr;      // [rows, hidden], where norms are behind blocks, or all rows have an expert
  float* angles = nullptr;         // [ropes, rows, D / 2] of (cos, sin)
  float* remote_angles = nullptr;  // [rows, D / 2], of the first RoPE
  float* lse = nullptr;            // [rows, heads], where a model has attention sinks
  std::byte* attention_scratch = nullptr;
  double* inv_freq = nullptr;  // [ropes, D / 2]

  // few_rows: those of qkv_f32. `arena` has the addresses once it assigns them.
  void reserve(ArenaLayout& arena, const ModelConfig& c, std::int32_t n_rows, std::int32_t few_rows,
               std::size_t n_ropes);
};

}  // namespace mneme
