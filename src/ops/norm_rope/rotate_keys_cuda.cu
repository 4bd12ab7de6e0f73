#include "src/kv/kv_codes.cuh"
#include "src/offload/device_cache_cuda.cuh"
#include "src/ops/norm_rope/rotate_keys_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8;
constexpr int kMaxPairs = 4;  // per lane: head_dim up to 256

// A token in 8 bits: its key is rotated as bf16 and quantised again, its value copied.
__device__ __forceinline__ void rotate_codes(const RotateKeysCuda& p, const float2 (&rotation)[kMaxPairs],
                                             const std::byte* from, std::byte* to) {
  const int lane = threadIdx.x % kWarp, d = p.from.head_dim, half = d / 2;
  const KvRow<EightBit> key(from, d, p.from.codes);
  float x[kMaxPairs], y[kMaxPairs];
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int pair = lane + i * kWarp;
    if (pair >= half) break;
    const float u = widen(key[p.neighbours ? 2 * pair : pair]),
                v = widen(key[p.neighbours ? 2 * pair + 1 : pair + half]);
    x[i] = widen(narrow<__nv_bfloat16>(u * rotation[i].x - v * rotation[i].y));
    y[i] = widen(narrow<__nv_bfloat16>(v * rotation[i].x + u * rotation[i].y));
  }
  CodePairs<kMaxPairs>{p.from.codes, d, false, p.neighbours, x, y}.write(to, nullptr);
  for (int i = lane; i < d / 8; i += kWarp)
    reinterpret_cast<uint2*>(to + d)[i] = reinterpret_cast<const uint2*>(from + d)[i];
  if (lane == 0) reinterpret_cast<float*>(to + 2 * d)[1] = reinterpret_cast<const float*>(from + 2 * d)[1];
}

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
    const std::byte* from_token = block_at(p.from, p.from_layer + layer * p.from_layer_step, p.from_slot, head, page) +
                                  token * token_bytes(p.from);
    std::byte* to_token = block_at(p.to, p.to_layer + layer * p.to_layer_step, p.to_slot, head, page % p.ring) +
                          token * token_bytes(p.to);
    if constexpr (std::is_same_v<Kv, EightBit>) {
      rotate_codes(p, rotation, from_token, to_token);
      continue;
    }
    const auto* from = reinterpret_cast<const ReadAs<Kv>*>(from_token);
    auto* to = reinterpret_cast<ReadAs<Kv>*>(to_token);
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
      const int pair = lane + i * kWarp;
      if (pair >= half) break;
      const int first = p.neighbours ? 2 * pair : pair, second = p.neighbours ? 2 * pair + 1 : pair + half;
      const float x = widen(from[first]), y = widen(from[second]);
      to[first] = narrow<ReadAs<Kv>>(x * rotation[i].x - y * rotation[i].y);
      to[second] = narrow<ReadAs<Kv>>(y * rotation[i].x + x * rotation[i].y);
      to[d + first] = from[d + first], to[d + second] = from[d + second];
    }
  }
}

}  // namespace

void rotate_keys_cuda(const RotateKeysCuda& t, const CudaContext& context) {
  if (t.end <= t.begin) return;
  const dim3 grid(static_cast<unsigned>((t.end - t.begin + kWarps - 1) / kWarps), static_cast<unsigned>(t.n_layers));
  with_kv_type(t.from, [&]<typename Kv>(Kv) {
    launch(context, "rotate_keys", rotate_kernel<Kv>, grid, dim3(kWarps * kWarp), 0, t);
  });
}

}  // namespace mneme
