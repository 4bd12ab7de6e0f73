// Positions at which attention sees a token, in f64: specification of positions=absolute, in_cache and one_angle.
#pragma once

#include <cstdint>
#include <vector>

#include "src/ops/norm_rope/rope.h"
#include "src/recipes/compile.h"

namespace mneme {

// A query of one head at a position.
struct PositionedQuery {
  const float* q = nullptr;  // [D] post-RoPE
  std::int32_t position = 0;
  bool everything = false;      // the query attends all earlier tokens
  std::int32_t local_from = 0;  // earlier tokens are remote, whatever their positions
};

// Dot product of the query with token t's stored key [D], without attention's scale. Keys that are rotated for it are
// rounded like stored ones.
double dot_at_position(const Plan& plan, const RopeTable& rope, const PositionedQuery& query,
                       const std::vector<double>& key, std::int32_t t);

// n 16-bit elements as doubles.
std::vector<double> numbers(const std::byte* from, std::int32_t n, DType dtype);

// v [D] rotated by `by` positions.
std::vector<double> rotated(const std::vector<double>& v, std::int32_t by, const RopeTable& rope);

}  // namespace mneme
