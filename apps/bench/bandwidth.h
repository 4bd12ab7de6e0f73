// Memory bandwidth and GEMM rate of this machine: the limits that a step's time is compared with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/ops/simd/cpu_context.h"
#include "src/tensor/buffer.h"

namespace mneme {

// Reads a buffer repeatedly with all threads of a pool.
class ReadProbe {
 public:
  // Touches every page of the buffer. Errors  kResource: out of memory.
  ReadProbe(std::size_t bytes, ThreadPool& pool);

  // Bytes a second of the fastest of `passes` (>= 1) passes.
  double measure(int passes);
  std::size_t bytes() const { return buffer_.size(); }

 private:
  ThreadPool& pool_;
  Buffer buffer_;
  std::uint64_t sink_ = 0;
};

// Bytes of a buffer that exceeds every cache: 16 times the L3, 512 MiB to 2 GiB, at most an eighth of memory. With an
// L3 of 32 MiB, two threads read 256 MiB up to 1.5 times as fast as 1 GiB.
std::size_t memory_probe_bytes(std::int64_t l3_bytes, std::int64_t memory_bytes);
// Bytes of a buffer that fits the L3 and not the L2s: half of the L3. 0 without an L3.
std::size_t l3_probe_bytes(std::int64_t l3_bytes);

// Operations a second (two per weight and row) of the best of `passes` GEMMs of `rows` activations with a [width,
// width] matrix of `weights`: the upper limit of prefill's GEMMs.
double gemm_rate(DType weights, std::int64_t rows, std::int64_t width, int passes, const CpuContext& context);

}  // namespace mneme
