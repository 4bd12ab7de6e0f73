// Queries turned on from where they stand to where a part of attention sees them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kernels/cpu_context.h"
#include "src/kernels/rope.h"

namespace mneme {

// A model's RoPE for vectors that it has turned already: what it scales cos and sin by is in them.
RopeTable turn_table(const RopeTable& rope);

class QueryTurner {
 public:
  explicit QueryTurner(const RopeTable& rope) : table_(turn_table(rope)) {}

  struct Row {
    const float* q = nullptr;  // [n_heads, D]
    std::int32_t by = 0;       // positions, of either sign
  };
  // [rows, n_heads, D], until the next call. The layers of a step turn by the same positions: their angles are kept.
  const float* turn(std::span<const Row> rows, std::int32_t n_heads, std::int32_t head_dim, const CpuContext& context);

  std::size_t scratch_bytes() const { return (out_.capacity() + by_.capacity()) * sizeof(float); }

 private:
  RopeTable table_;
  RopeAngles angles_;
  std::vector<std::int32_t> by_, wanted_;  // of angles_; of this call
  std::vector<float> out_;
};

}  // namespace mneme
