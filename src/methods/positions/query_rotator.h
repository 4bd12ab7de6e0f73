// Rotates queries from their own positions to remapped ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/ops/norm_rope/rope.h"
#include "src/ops/simd/cpu_context.h"

namespace mneme {

// A model's RoPE for vectors that are rotated already: their scale of cos and sin is applied already.
RopeTable rotation_table(const RopeTable& rope);

class QueryRotator {
 public:
  explicit QueryRotator(const RopeTable& rope) : table_(rotation_table(rope)) {}

  struct Rotation {
    const float* q = nullptr;  // [n_heads, D]
    std::int32_t by = 0;       // positions, positive or negative
  };
  // [rows, n_heads, D], valid until the next call. All layers of a step rotate by the same positions: angles are
  // cached.
  const float* rotate(std::span<const Rotation> rows, std::int32_t n_heads, std::int32_t head_dim,
                      const CpuContext& context);

  std::size_t scratch_bytes() const { return (out_.capacity() + by_.capacity()) * sizeof(float); }

 private:
  RopeTable table_;
  RopeAngles angles_;
  std::vector<std::int32_t> by_, wanted_;  // of angles_; of this call
  std::vector<float> out_;
};

}  // namespace mneme
