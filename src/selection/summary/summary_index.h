// The summaries of this folder as indexes of units.
#pragma once

#include <cstdint>
#include <memory>

#include "src/selection/index/unit_index.h"

namespace mneme {

// k centroids of 4 bits a page, over units of `unit_tokens`.
std::unique_ptr<UnitIndex> make_centroids_index(std::int32_t k, std::int32_t unit_tokens);
// Mean and r coefficients a token. Units of one token: an entry holds kSketchTokens of them, each with a score.
std::unique_ptr<UnitIndex> make_sketch_index(std::int32_t r, std::int32_t unit_tokens);
inline constexpr std::int32_t kSketchTokens = 32;
// Mean and variance of every channel, over units of `unit_tokens`.
std::unique_ptr<UnitIndex> make_moments_index(std::int32_t unit_tokens);

}  // namespace mneme
