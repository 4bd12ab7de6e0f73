// Moves tokens' [K | V] pairs between blocks of a pool, on the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"

namespace mneme {

// n consecutive tokens. `to` and `from` count tokens over all blocks: block * kPageTokens + index in the page.
struct TokenMove {
  std::int64_t to = 0, from = 0;
  std::int32_t n = 0;
};
inline constexpr std::int32_t kMaxMoved = 8;  // tokens per move: what a warp holds in registers

// Applies lists of moves; list i is moves [ends[i - 1], ends[i]). Overlapping moves of a list are applied in order.
//
//   moves [ends of the last list], ends [n_lists]; both on the device
//   base  address of block 0: device memory, or mapped host memory by its device address
//
// Requires  within a list every move goes down (to < from), ascending in both; no list writes what another reads.
// Async  enqueues.
void move_tokens_cuda(std::byte* base, std::int32_t token_bytes, const TokenMove* moves, const std::int32_t* ends,
                      std::int32_t n_lists, const CudaContext& context);

}  // namespace mneme
