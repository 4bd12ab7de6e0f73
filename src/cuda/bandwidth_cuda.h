// Read bandwidth of device memory: the lower bound of every decode step.
#pragma once

#include <cstddef>

#include "src/cuda/context.h"

namespace mneme {

// Reads `bytes` (a multiple of 16) once. `sink` (one float) is written only if the sum has a value that no data gives,
// so the loads are not optimised away. Async: enqueues on the context's stream.
void read_all_cuda(const void* from, std::size_t bytes, float* sink, const CudaContext& context);

}  // namespace mneme
