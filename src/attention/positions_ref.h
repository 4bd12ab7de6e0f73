// Where a method's attention sees a token, in f64: the specification of positions=absolute, in_cache and one_angle.
#pragma once

#include <cstdint>
#include <vector>

#include "src/kernels/rope.h"
#include "src/recipes/compile.h"

namespace mneme {

// One head, at one place of a sequence.
struct PlacedQuery {
  const float* q = nullptr;  // [D] after RoPE
  std::int32_t position = 0;
  bool everything = false;     // the query attends all tokens before it
  std::int32_t near_from = 0;  // tokens before it are far, wherever they stand
};

// Product of the query with token t's key [D] as it is stored; the scale of attention is not applied. Keys that are
// turned for it are rounded as stored ones are.
double placed_product(const Plan& plan, const RopeTable& rope, const PlacedQuery& query, const std::vector<double>& key,
                      std::int32_t t);

// n elements of 16 bits.
std::vector<double> numbers(const std::byte* from, std::int32_t n, DType dtype);

// v [D] turned by `by` positions.
std::vector<double> turned(const std::vector<double>& v, std::int32_t by, const RopeTable& rope);

}  // namespace mneme
