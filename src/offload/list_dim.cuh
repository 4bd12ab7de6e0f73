// Widths of the rows that kernels of lists take (list_dim() of device_cache_cuda.h).
#pragma once

#include <type_traits>

#include "src/offload/device_cache_cuda.h"

namespace mneme::cuda {

// Calls f(std::integral_constant<int, list_dim(head_dim)>()).
template <typename F>
void with_list_dim(int head_dim, F&& f) {
  const int dim = list_dim(head_dim);
  if (dim == 64) return f(std::integral_constant<int, 64>());
  if (dim == 128) return f(std::integral_constant<int, 128>());
  f(std::integral_constant<int, 256>());
}

}  // namespace mneme::cuda
