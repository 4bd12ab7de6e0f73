// Routing of rows to experts on the device. A pair is a row and one of its experts; pair p is of row p / n_used.
// src/model/routing.h is the specification. All pointers are device memory.
// Async: all enqueue; nothing waits for the host.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"

namespace mneme {

inline constexpr std::int32_t kMaxExpertsCuda = 1024, kMaxExpertsUsedCuda = 16;

struct RouterCuda {
  const float* weights = nullptr;      // [n_experts, hidden]
  const float* bias = nullptr;         // [n_experts], or null
  const float* norm_weight = nullptr;  // [hidden]: of the norm before the router
  float eps = 0;
  std::int32_t hidden = 0, n_experts = 0, n_used = 0;
  bool normalise = true;  // the shares of a row's experts sum to 1
};

// What routing leaves, and its scratch.
struct RoutedRows {
  float* logits = nullptr;          // [n, n_experts]
  std::int32_t* experts = nullptr;  // [n, n_used] by descending logit
  float* shares = nullptr;          // [n, n_used]
  float* scales = nullptr;          // [n]: 1 / RMS of a row, of few rows alone
  std::int32_t* arrived = nullptr;  // one, zero before the first call; of few rows alone
};

// Rows' experts by descending logit, and their shares.
//   x [n, hidden] f32, before the norm; logits [n, n_experts] f32: scratch
//   experts, shares [n, n_used] i32, f32 out
// Numerics  f32 throughout.   Ties  the lower number.   NaN  counts as -inf, and gives NaN shares.
void route_cuda(const RouterCuda& router, const float* x, std::int32_t n, float* logits, std::int32_t* experts,
                float* shares, const CudaContext& context);

// Pairs in order of their experts, and of their numbers within one, cut into tiles of at most `tile_rows`. Tiles count
// experts from first_expert on.
struct SortedPairs {
  std::int32_t* order = nullptr;  // [n * n_used] pair numbers
  std::int32_t* slots = nullptr;  // [n * n_used] where a pair is in `order`; -1: nowhere
  std::int32_t* tiles = nullptr;  // [most_tiles(), 3]: expert, first entry of `order`, entries
  std::int32_t* n_tiles = nullptr;
  std::int32_t tile_rows = 0;
  std::int32_t first_expert = 0;  // of n_experts that are sorted; pairs of others get slot -1, and no tile
};
// Tiles that n_pairs can take, whatever the routing.
std::int32_t most_tiles(std::int32_t n_pairs, std::int32_t n_experts, std::int32_t tile_rows);
//   experts [n_pairs] i32
void sort_pairs_cuda(const std::int32_t* experts, std::int32_t n_pairs, std::int32_t n_experts,
                     const SortedPairs& sorted, const CudaContext& context);

// Routes few rows in one launch: route_cuda(), sort_pairs_cuda() in tiles of 8, and the scales of the rows' norms.
// Logits differ from route_cuda()'s by rounding. With eight rows it is no faster.
inline constexpr std::int32_t kFewRoutedRows = 4, kFewRoutedExperts = 256;
//   n_sorted: experts from sorted.first_expert on.   Requires  n <= kFewRoutedRows, n_experts <= kFewRoutedExperts,
//   hidden a multiple of 4, sorted.tile_rows = 8
void route_few_cuda(const RouterCuda& router, const float* x, std::int32_t n, std::int32_t n_sorted,
                    const RoutedRows& out, const SortedPairs& sorted, const CudaContext& context);

}  // namespace mneme
