// Scatters contiguous pieces to addresses on the device: the second half of a staged recall (host_recall_cuda.h).
//
//   from  [n] pieces of `bytes`, on the device
//   to    n addresses on the device
//
// Requires  1 <= n <= kMaxScattered; bytes and all addresses multiples of 16.
// Async  enqueues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/cuda/context.h"

namespace mneme {

inline constexpr std::size_t kMaxScattered = 128;

void scatter_pages_cuda(const std::byte* from, std::span<std::byte* const> to, std::size_t bytes,
                        const CudaContext& context);

}  // namespace mneme
