// Top-k: the k largest of a row of scores.
//
//   scores  [n]  f32
//   ids     [k]  i32 out, ascending; returns the number written, min(k, n)
//
// Requires  k >= 0, 0 <= n < 2^31.
// Ties      the larger index first, on every backend.   NaN  below -inf; -inf is a score like any other.
// Threads   one thread per row; a scratch belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mneme {

// Working memory kept by a caller between rows, so that no row allocates.
struct TopkScratch {
  std::vector<std::uint32_t> words;
  std::vector<std::int32_t> candidates;
};

std::int32_t topk_ref(std::span<const float> scores, std::int32_t k, std::int32_t* ids);
std::int32_t topk_cpu(std::span<const float> scores, std::int32_t k, std::int32_t* ids, TopkScratch& scratch);

}  // namespace mneme
