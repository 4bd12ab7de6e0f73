// Copies blocks of a pool to and from host memory, many at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/cuda/context.h"

namespace mneme {

// A block of a pool, and a place of a block's size in host memory.
struct BlockPlace {
  std::int32_t block = 0, place = 0;
};
enum class BlocksGo : std::uint8_t { kOut, kIn };  // to host memory, or to the pool

// What copy_blocks_cuda() does, on memory that this thread reads.
void copy_blocks(std::byte* pool, std::byte* host, std::span<const BlockPlace> places, std::size_t block_bytes,
                 BlocksGo go);

// The same by one kernel, which reads and writes host memory over the link.
//
//   pool, host  device addresses; of host memory, that at which the device maps it
//   places      [n]: a device address; read while the kernel runs
//
// Requires  block_bytes a multiple of 16; no block, or no place, that is written is there twice.
// Async  enqueues.
void copy_blocks_cuda(std::byte* pool, std::byte* host, const BlockPlace* places, std::int32_t n,
                      std::size_t block_bytes, BlocksGo go, const CudaContext& context);

}  // namespace mneme
