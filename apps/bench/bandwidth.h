// How fast this machine reads memory and multiplies matrices: what a step's time is held against.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/cpu_context.h"
#include "src/tensor/buffer.h"

namespace mneme {

// Reads a buffer over and over with all threads of a pool.
class ReadProbe {
 public:
  // Touches all of the buffer. Errors  kResource: no room for it.
  ReadProbe(std::size_t bytes, ThreadPool& pool);

  // Bytes a second of the fastest of `passes` (>= 1) passes.
  double measure(int passes);
  std::size_t bytes() const { return buffer_.size(); }

 private:
  ThreadPool& pool_;
  Buffer buffer_;
  std::uint64_t sink_ = 0;
};

// A buffer that no cache holds: 16 times the L3, 512 MiB to 2 GiB, at most an eighth of the memory. Of 256 MiB, two
// threads beside an L3 of 32 MiB read up to half as fast again as of 1 GiB.
std::size_t memory_probe_bytes(std::int64_t l3_bytes, std::int64_t memory_bytes);
// One that the L3 holds and the L2s do not: half of it. 0 where there is no L3.
std::size_t l3_probe_bytes(std::int64_t l3_bytes);

// Operations (two a weight and row) a second of the best of `passes` products of `rows` activations with a
// [width, width] matrix of `weights`: as fast as prefill's products can be here.
double product_rate(DType weights, std::int64_t rows, std::int64_t width, int passes, const CpuContext& context);

}  // namespace mneme
