// Activations of pairs in the order of their experts' columns.
#include "src/cuda/common.cuh"
#include "src/ops/experts/grouped_gemm_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256;

struct PairSource {
  const std::uint16_t* x;
  bool by_slot;
  int n_used, k;
  const std::int32_t *columns, *experts;
};

// A thread block per pair.
__global__ void __launch_bounds__(kThreads) gather_kernel(PairSource r, SortedPairs pairs, std::uint16_t* out) {
  launch_dependents();
  grid_dependency_wait();
  const int pair = static_cast<int>(blockIdx.x), slot = pairs.slots[pair];
  if (slot < 0) return;
  const std::int32_t* columns = r.columns + static_cast<std::int64_t>(r.experts[pair] - pairs.first_expert) * r.k;
  const std::uint16_t* x = r.x + static_cast<std::int64_t>(r.by_slot ? slot : pair / r.n_used) * r.k;
  for (int j = static_cast<int>(threadIdx.x); j < r.k; j += kThreads)
    out[static_cast<std::int64_t>(slot) * r.k + j] = x[columns[j]];
}

}  // namespace

void gather_pairs_cuda(const GroupedGemmCuda& g, const std::int32_t* experts, const SortedPairs& pairs, void* out,
                       const CudaContext& context) {
  const PairSource rows{.x = static_cast<const std::uint16_t*>(g.x),
                        .by_slot = g.by_slot,
                        .n_used = g.n_used,
                        .k = static_cast<int>(g.w.n_in),
                        .columns = g.w.columns,
                        .experts = experts};
  launch(context, "gather_pairs", gather_kernel, dim3(static_cast<unsigned>(g.n_pairs)), dim3(kThreads), 0, rows, pairs,
         static_cast<std::uint16_t*>(out));
}

}  // namespace mneme
