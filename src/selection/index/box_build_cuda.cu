// Min-max boxes of whole pages: one warp per page; each lane handles its channels of all tokens.
#include <algorithm>

#include "src/kv/kv_codes.cuh"
#include "src/offload/device_cache_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8, kThreads = kWarps * kWarp;

struct Args {
  DeviceCache s;
  KvTables keys;
  BuildBoxes b;
};

template <typename T>
struct Pair;
template <>
struct Pair<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  static __device__ Type larger(Type a, Type b) { return __hmax2_nan(a, b); }
  static __device__ Type smaller(Type a, Type b) { return __hmin2_nan(a, b); }
};
template <>
struct Pair<__half> {
  using Type = __half2;
  static __device__ Type larger(Type a, Type b) { return __hmax2_nan(a, b); }
  static __device__ Type smaller(Type a, Type b) { return __hmin2_nan(a, b); }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) build_kernel(Args p) {
  using P = Pair<ReadAs<T>>;
  using Two = typename P::Type;
  const int kv_head = blockIdx.y, lane = threadIdx.x % kWarp, d = p.s.head_dim, words = d / 2;
  const int page = p.b.first + blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (page >= p.b.stop) return;
  const int begin = page * kKvPageTokens, n = min(kKvPageTokens, p.b.n_tokens - begin);
  if (n <= 0) return;
  const std::byte* from = block_at(p.keys, p.b.key_layer, p.b.key_slot, kv_head, page);
  auto* box = reinterpret_cast<Two*>(p.s.index.boxes +
                                     (slot_index(p.s, p.b.slot_layer, p.b.seq_slot, kv_head) * p.s.max_pages + page) *
                                         box_bytes(p.s));
  for (int c = lane; c < words; c += kWarp) {
    const auto key = [&](int t) {
      const KvRow<T> row(from + t * token_bytes(p.s), d, p.s.codes);
      return Two{row[2 * c], row[2 * c + 1]};
    };
    Two high = key(0), low = high;
#pragma unroll 8
    for (int t = 1; t < n; ++t) {
      const Two k = key(t);
      high = P::larger(high, k), low = P::smaller(low, k);
    }
    box[c] = high;
    box[words + c] = low;
  }
}

}  // namespace

void build_boxes_cuda(const BuildBoxes& b, const DeviceCache& s, const KvTables& keys, const CudaContext& context) {
  if (b.stop <= b.first) return;
  const dim3 grid(static_cast<unsigned>((b.stop - b.first + kWarps - 1) / kWarps), static_cast<unsigned>(s.n_kv_heads));
  with_kv_type(s, [&]<typename T>(T) {
    launch(context, "build_boxes", build_kernel<T>, grid, dim3(kThreads), 0, Args{s, keys, b});
  });
}

}  // namespace mneme
