// kmeans.h on the device, all KV heads of a layer at once. The same clusters as kmeans_ref, bit for bit: what is
// compared and summed are integers.
//
//   keys     [heads][n][list_dim(D)]  16-bit, on the device, zeros behind D channels (device_cache_cuda.h)
//   cluster  [heads][n]     u16 out
//   scratch  kmeans_scratch_bytes(); not shared by concurrent calls
//
// Requires  D at most 256; 1 <= n <= kMaxKmeansTokens; 1 <= n_clusters <= n; iterations >= 1.
// Async     enqueues.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/context.h"
#include "src/selection/cluster/kmeans.h"

namespace mneme {

inline constexpr std::int32_t kMaxKmeansTokens = 8192;

struct KmeansCuda {
  const std::byte* keys = nullptr;
  std::int32_t n_heads = 1, n = 0, head_dim = 128;
  bool f16 = false;  // else bf16
  std::int32_t n_clusters = 1, iterations = 1;
  KmeansMetric metric = KmeansMetric::kDistance;
  std::uint16_t* cluster = nullptr;
  std::byte* scratch = nullptr;
};

std::size_t kmeans_scratch_bytes(std::int32_t n_heads, std::int32_t n, std::int32_t head_dim, std::int32_t n_clusters);
void kmeans_cuda(const KmeansCuda& k, const CudaContext& context);

}  // namespace mneme
