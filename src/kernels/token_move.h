// Tokens' keys and values from slots of a pool's blocks to others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/cuda_context.h"

namespace mneme {

// n tokens, one after the other in either place. Slots are counted over all blocks: block * kPageTokens + token.
struct TokenMove {
  std::int64_t to = 0, from = 0;
  std::int32_t n = 0;
};
inline constexpr std::int32_t kMostMoved = 8;  // tokens of one move: what a warp holds in registers

// Lists of moves, one after the other: list i ends before ends[i]. Done in order as far as they overlap, provided that
// a list's moves go down (to < from), ascending on both sides, and that no list writes what another one reads.
//
//   moves [ends of the last list], ends [n_lists]; both on the device
//   base  of block 0; the device's own memory, or the host's by the device's address
void move_tokens_cuda(std::byte* base, std::int32_t token_bytes, const TokenMove* moves, const std::int32_t* ends,
                      std::int32_t n_lists, const CudaContext& context);

}  // namespace mneme
