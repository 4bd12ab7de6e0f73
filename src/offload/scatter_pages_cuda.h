// What stands one behind the other, to where each piece belongs: the second half of a recall that goes through a buffer
// (`mneme bench ablate`, staged).
//
//   from  [n] pieces of `bytes`, on the device
//   to    n addresses on the device
//
// Requires  1 <= n <= kMostScattered; bytes a multiple of 16, all addresses too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kernels/cuda_context.h"

namespace mneme {

inline constexpr std::size_t kMostScattered = 128;

void scatter_pages_cuda(const std::byte* from, std::span<std::byte* const> to, std::size_t bytes,
                        const CudaContext& context);

}  // namespace mneme
