#include "src/offload/kv_slots_cuda.cuh"
#include "src/ops/norm_rope/rotate_keys_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8;
constexpr int kMaxPairs = 4;  // per lane: head_dim up to 256

// One warp per (token, layer); lane i has pairs i, i + 32, ... of every KV head.
template <typename Kv>
__global__ void __launch_bounds__(kWarps* kWarp) rotate_kernel(RotateKeysCuda p) {
  grid_dependency_wait();
  const int lane = threadIdx.x % kWarp, d = p.from.head_dim, half = d / 2, layer = blockIdx.y;
  const int position = p.begin + static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (position >= p.end) return;
  float2 rotation[kMaxPairs];
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    if (lane + i * kWarp >= half) break;
    double s, c;
    sincos(static_cast<double>(position) * p.inv_freq[lane + i * kWarp], &s, &c);
    rotation[i] = {static_cast<float>(c), static_cast<float>(s)};
  }
  const int page = position / kKvPageTokens, token = position % kKvPageTokens;
  for (int head = 0; head < p.from.n_kv_heads; ++head) {
    const auto* from = reinterpret_cast<const Kv*>(
                           block_at(p.from, p.from_layer + layer * p.from_layer_step, p.from_slot, head, page)) +
                       static_cast<std::int64_t>(token) * 2 * d;
    auto* to =
        reinterpret_cast<Kv*>(block_at(p.to, p.to_layer + layer * p.to_layer_step, p.to_slot, head, page % p.ring)) +
        static_cast<std::int64_t>(token) * 2 * d;
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
      const int pair = lane + i * kWarp;
      if (pair >= half) break;
      const int first = p.neighbours ? 2 * pair : pair, second = p.neighbours ? 2 * pair + 1 : pair + half;
      const float x = widen(from[first]), y = widen(from[second]);
      to[first] = narrow<Kv>(x * rotation[i].x - y * rotation[i].y);
      to[second] = narrow<Kv>(y * rotation[i].x + x * rotation[i].y);
      to[d + first] = from[d + first], to[d + second] = from[d + second];
    }
  }
}

}  // namespace

void rotate_keys_cuda(const RotateKeysCuda& t, const CudaContext& context) {
  if (t.end <= t.begin) return;
  const dim3 grid(static_cast<unsigned>((t.end - t.begin + kWarps - 1) / kWarps), static_cast<unsigned>(t.n_layers));
  launch(context, "rotate_keys", t.from.f16 ? rotate_kernel<__half> : rotate_kernel<__nv_bfloat16>, grid,
         dim3(kWarps * kWarp), 0, t);
}

}  // namespace mneme
