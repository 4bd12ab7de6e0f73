// One thread block per (sequence, layer, KV head), or per (sequence, layer) where a layer's heads decide together.
#include "src/cuda/block_reduce.cuh"
#include "src/kv/kv_tables_cuda.cuh"
#include "src/selection/mass/drop_least.h"
#include "src/selection/mass/drop_least_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 512, kWarps = kThreads / kWarp;

// The threads of a block, as drop_least() has them.
class BlockTeam {
 public:
  __device__ explicit BlockTeam(std::uint64_t (&parts)[kWarps]) : parts_(parts) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return kThreads; }
  __device__ int sum(int n) const { return static_cast<int>(block_sum(static_cast<std::uint64_t>(n), parts_)); }
  __device__ std::uint64_t least(std::uint64_t key) const {
    const auto smaller = [](std::uint64_t a, std::uint64_t b) { return min(a, b); };
#pragma unroll
    for (int i = kWarp / 2; i > 0; i /= 2) key = smaller(key, __shfl_xor_sync(~0u, key, i));
    return block_reduce(key, parts_, smaller);
  }

 private:
  std::uint64_t (&parts_)[kWarps];
};

__global__ void __launch_bounds__(kThreads) drop_kernel(DropLeastCuda a, KvTables tables) {
  __shared__ std::uint64_t parts[kWarps];
  grid_dependency_wait();
  const DropTask row = a.rows[blockIdx.z];
  const int kv_head = static_cast<int>(blockIdx.x), layer = static_cast<int>(blockIdx.y), n_kv = tables.n_kv_heads;
  if (row.mass_row < 0 || (row.one_a_layer && kv_head > 0)) return;
  const std::int64_t head = (static_cast<std::int64_t>(row.mass_row) * a.n_layers + layer) * n_kv + kv_head;
  const int first_slot = a.first_slots[head];
  if (first_slot < 0) return;
  const DropPlace place{.n_slots = row.length - shift_of(tables, layer, row.seq_slot, kv_head),
                        .first_slot = first_slot,
                        .recent = row.recent,
                        .keep = row.keep};
  const int n_heads = row.one_a_layer ? n_kv : 1;
  const float *given = a.given + head * a.stride, *mass = given;
  if (row.adds) {
    float* received = a.received + head * a.stride;
    for (int h = 0; h < n_heads; ++h)
      for (int slot = static_cast<int>(threadIdx.x); slot < place.n_slots; slot += kThreads) {
        const std::int64_t at = h * a.stride + slot;
        // The step's own token has received nothing before.
        received[at] = slot + 1 == place.n_slots ? given[at] : received[at] + given[at];
      }
    mass = received;
    __syncthreads();
  }
  std::uint32_t* masks = a.masks + table_at(tables, layer, row.seq_slot, kv_head);
  drop_least(
      BlockTeam(parts), masks, place,
      [&](int slot) {
        float sum = 0;
        for (int h = 0; h < n_heads && row.by_mass; ++h) sum += mass[h * a.stride + slot];
        return sum;
      },
      [&](int slot) {
        __syncthreads();
        if (threadIdx.x < n_heads) masks[threadIdx.x * tables.max_pages + slot / 32] &= ~(1u << slot % 32);
        __syncthreads();
      });
}

}  // namespace

void drop_least_cuda(const DropLeastCuda& a, const KvTables& tables, const CudaContext& context) {
  if (a.n == 0) return;
  launch(context, "drop_least", drop_kernel, grid_of(tables.n_kv_heads, a.n_layers, a.n), kThreads, 0, a, tables);
}

}  // namespace mneme
