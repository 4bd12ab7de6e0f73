#include <algorithm>

#include "apps/bench/device/scatter_pages_cuda.h"
#include "src/cuda/common.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256;

struct Targets {
  std::byte* to[kMaxScattered];
};

__global__ void __launch_bounds__(kThreads) scatter_kernel(const std::byte* from, Targets targets, int pieces) {
  const auto* page = reinterpret_cast<const uint4*>(from) + static_cast<std::int64_t>(blockIdx.x) * pieces;
  auto* to = reinterpret_cast<uint4*>(targets.to[blockIdx.x]);
  for (int i = threadIdx.x; i < pieces; i += kThreads) __stcg(to + i, __ldcs(page + i));
}

}  // namespace

void scatter_pages_cuda(const std::byte* from, std::span<std::byte* const> to, std::size_t bytes,
                        const CudaContext& context) {
  Targets targets{};
  std::copy(to.begin(), to.end(), targets.to);
  launch(context, "scatter_pages", scatter_kernel, dim3(static_cast<unsigned>(to.size())), dim3(kThreads), 0, from,
         targets, static_cast<int>(bytes / 16));
}

}  // namespace mneme
