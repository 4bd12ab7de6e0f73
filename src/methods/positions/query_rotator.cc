#include "src/methods/positions/query_rotator.h"

#include <algorithm>

namespace mneme {

RopeTable rotation_table(const RopeTable& rope) {
  RopeTable table = rope;
  table.scale = 1.0;
  return table;
}

const float* QueryRotator::rotate(std::span<const Rotation> rows, std::int32_t n_heads, std::int32_t head_dim,
                                  const CpuContext& context) {
  wanted_.clear();
  for (const Rotation& row : rows) wanted_.push_back(row.by);
  if (wanted_ != by_) {
    by_ = wanted_;
    angles_.set(by_, table_, context);
  }
  const std::int64_t n = std::ssize(rows), width = std::int64_t{n_heads} * head_dim;
  out_.resize(n * width);
  context.pool->parallel_for(n, 64, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) std::copy_n(rows[i].q, width, out_.data() + i * width);
  });
  rope_cpu(TensorView(reinterpret_cast<std::byte*>(out_.data()), DType::kF32, {n, n_heads, head_dim}), angles_,
           context);
  return out_.data();
}

}  // namespace mneme
