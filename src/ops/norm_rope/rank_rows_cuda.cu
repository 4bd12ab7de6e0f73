#include "src/cuda/common.cuh"
#include "src/ops/norm_rope/rank_rows_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256;
constexpr int kRowThreads = 1024;  // a row of 4,096 at once: it is on the critical path of every layer, twice

// One thread block per row.
__global__ void __launch_bounds__(kRowThreads) add_summed_rows_kernel(const float4* sum, int quads, EmbedOutput out) {
  __shared__ float parts[kRowThreads / kWarp];
  grid_dependency_wait();
  launch_dependents();  // the next GEMM requests weights
  const std::int64_t row = blockIdx.x;
  const float4* from = sum + row * quads;
  float4* to = reinterpret_cast<float4*>(out.residual) + row * quads;
  const auto* weight = reinterpret_cast<const float4*>(out.norm_weight);
  auto* next = static_cast<uint2*>(out.x_next) + row * quads;
  float squares = 0;
  for (int i = threadIdx.x; i < quads; i += kRowThreads) {
    float4 v = to[i];
    const float4 more = from[i];
    v = {v.x + more.x, v.y + more.y, v.z + more.z, v.w + more.w};
    to[i] = v;
    if (out.x_next == nullptr) continue;
    const float4 w = weight[i];
    next[i] = {pack<__nv_bfloat16>(v.x * w.x, v.y * w.y), pack<__nv_bfloat16>(v.z * w.z, v.w * w.w)};
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  if (out.x_next == nullptr) return;
  squares = warp_sum(squares);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = squares;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  const float all = warp_sum(parts[threadIdx.x]);
  if (threadIdx.x == 0) out.sums[row] = all;
}

// Packets in memory of other GPUs, and in mine where they write: neither may stay in a cache of this SM.
struct PeerAccess {
  const std::int32_t* stop;
  int looks = 0;
  __device__ __forceinline__ void store(PeerPacket* to, const PeerPacket& p) const {
    asm volatile("st.volatile.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(__float_as_uint(p.first)),
                 "r"(p.first_epoch), "r"(__float_as_uint(p.second)), "r"(p.second_epoch)
                 : "memory");
  }
  __device__ __forceinline__ PeerPacket load(const PeerPacket* from) const {
    std::uint32_t first, first_epoch, second, second_epoch;
    asm volatile("ld.volatile.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(first), "=r"(first_epoch), "=r"(second), "=r"(second_epoch)
                 : "l"(from)
                 : "memory");
    return {__uint_as_float(first), first_epoch, __uint_as_float(second), second_epoch};
  }
  // Host memory is 1 us away: polled seldom.
  __device__ __forceinline__ bool stopped() {
    if (++looks % 1024 != 0) return false;
    std::int32_t v;
    asm volatile("ld.volatile.global.b32 %0, [%1];" : "=r"(v) : "l"(stop) : "memory");
    return v != 0;
  }
};

// A tile of a row a thread block. out.residual null: sums go to `to`.
template <int kRanks>
__global__ void __launch_bounds__(kPeerThreads)
    add_peer_rows_kernel(const __grid_constant__ PeerBuffers peers, const float4* rows, int quads, float4* to,
                         EmbedOutput out) {
  __shared__ float squares_of[kPeerThreads / kWarp];
  launch_dependents();  // the next GEMM requests weights while packets are in flight
  const int column = static_cast<int>(blockIdx.x) * kPeerThreads + static_cast<int>(threadIdx.x);
  const int tile = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
  const std::int64_t at = std::int64_t{blockIdx.y} * quads + column;
  const bool here = column < quads;
  float4 weight{};
  if (here && out.x_next != nullptr) weight = reinterpret_cast<const float4*>(out.norm_weight)[column];
  grid_dependency_wait();
  const std::uint32_t epoch = next_epoch(__ldcg(peers.epochs + tile));
  float squares = 0;
  if (here) {
    const float4 mine = __ldcg(rows + at);
    PeerAccess access{peers.stop};
    const PeerQuad sum = sum_over_peers<kRanks>(peers, tile, epoch, static_cast<int>(threadIdx.x),
                                                {mine.x, mine.y, mine.z, mine.w}, access);
    float4 v = {sum.v[0], sum.v[1], sum.v[2], sum.v[3]};
    if (out.residual != nullptr) {
      to = reinterpret_cast<float4*>(out.residual);
      const float4 before = __ldcg(to + at);
      v = {before.x + v.x, before.y + v.y, before.z + v.z, before.w + v.w};
    }
    to[at] = v;
    if (out.x_next != nullptr)
      static_cast<uint2*>(out.x_next)[at] = {pack<__nv_bfloat16>(v.x * weight.x, v.y * weight.y),
                                             pack<__nv_bfloat16>(v.z * weight.z, v.w * weight.w)};
    squares = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  squares = warp_sum(squares);
  if (threadIdx.x % kWarp == 0) squares_of[threadIdx.x / kWarp] = squares;
  __syncthreads();  // also: every thread has read the epoch
  if (threadIdx.x != 0) return;
  peers.epochs[tile] = epoch;
  if (out.x_next == nullptr) return;
  float all = 0;
#pragma unroll
  for (const float v : squares_of) all += v;
  out.sums[tile] = all;
}

constexpr int kReadThreads = 512;
constexpr int kReadsEach = 4;  // requests of a thread in flight: 4 MiB of all, where the link holds 0.6

// Between GPUs: what this thread block's rank wrote before is seen by who sees the flag.
__device__ __forceinline__ void raise_peer_flag(std::uint32_t* flag, std::uint32_t v) {
  __threadfence_system();
  asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(flag), "r"(v) : "memory");
}
__device__ __forceinline__ void await_peer_flag(const std::uint32_t* flag, std::uint32_t v, const std::int32_t* stop) {
  PeerAccess access{stop};
  std::uint32_t seen;
  do asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
  while (seen != v && !access.stopped());
}

__device__ __forceinline__ float4 sum_of(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

__global__ void __launch_bounds__(kReadThreads)
    read_peer_rows_kernel(const __grid_constant__ PeerExchange peers, std::int64_t quads, float4* residual,
                          float4* out) {
  grid_dependency_wait();
  const int other = 1 - peers.rank;
  std::uint32_t epoch = 0;
  if (threadIdx.x == 0) {
    epoch = next_epoch(__ldcg(peers.epochs + blockIdx.x));
    raise_peer_flag(peers.flags[other] + blockIdx.x, epoch);
    await_peer_flag(peers.flags[peers.rank] + blockIdx.x, epoch, peers.stop);
  }
  __syncthreads();
  const auto* first = reinterpret_cast<const float4*>(peers.of[0]);
  const auto* second = reinterpret_cast<const float4*>(peers.of[1]);
  constexpr std::int64_t kStride = std::int64_t{kPeerReaders} * kReadThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kReadThreads + threadIdx.x; i < quads; i += kStride * kReadsEach) {
    float4 a[kReadsEach], b[kReadsEach];
#pragma unroll
    for (int k = 0; k < kReadsEach; ++k) {
      const std::int64_t at = i + k * kStride;
      if (at < quads) a[k] = __ldcg(first + at), b[k] = __ldcg(second + at);
    }
#pragma unroll
    for (int k = 0; k < kReadsEach; ++k) {
      const std::int64_t at = i + k * kStride;
      if (at >= quads) continue;
      const float4 sum = sum_of(a[k], b[k]);
      if (residual != nullptr)
        residual[at] = sum_of(residual[at], sum);
      else
        out[at] = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  raise_peer_flag(peers.flags[other] + kPeerReaders + blockIdx.x, epoch);
  await_peer_flag(peers.flags[peers.rank] + kPeerReaders + blockIdx.x, epoch, peers.stop);
  peers.epochs[blockIdx.x] = epoch;
}

void launch_peer_rows(const PeerBuffers& peers, int ranks, const float* rows, dim3 grid, std::int64_t quads, float* to,
                      const EmbedOutput& out, const CudaContext& context) {
  const auto run = [&](auto kernel) {
    launch(context, "add_peer_rows", kernel, grid, dim3(kPeerThreads), 0, peers, reinterpret_cast<const float4*>(rows),
           static_cast<int>(quads), reinterpret_cast<float4*>(to), out);
  };
  if (ranks == 2) run(add_peer_rows_kernel<2>);
  if (ranks == 4) run(add_peer_rows_kernel<4>);
  if (ranks == 8) run(add_peer_rows_kernel<8>);
}

__global__ void __launch_bounds__(kThreads)
    join_vocabulary_kernel(const float* parts, int part, int vocab, float* logits) {
  grid_dependency_wait();
  const int column = blockIdx.x * kThreads + threadIdx.x;
  const std::int64_t row = blockIdx.y, n = gridDim.y;
  if (column >= vocab) return;
  logits[row * vocab + column] = parts[(column / part * n + row) * part + column % part];
}

}  // namespace

void add_summed_rows_cuda(const float* sum, std::int32_t n, std::int32_t hidden, const EmbedOutput& out,
                          const CudaContext& context) {
  launch(context, "add_summed_rows", add_summed_rows_kernel, dim3(static_cast<unsigned>(n)), dim3(kRowThreads), 0,
         reinterpret_cast<const float4*>(sum), hidden / 4, out);
}

std::int32_t peer_row_parts(std::int32_t hidden) {
  return (hidden + kPeerTile - 1) / kPeerTile;
}

void add_peer_rows_cuda(const PeerBuffers& peers, int ranks, const float* rows, std::int32_t n, std::int32_t hidden,
                        const EmbedOutput& out, const CudaContext& context) {
  launch_peer_rows(peers, ranks, rows, dim3(static_cast<unsigned>(peer_row_parts(hidden)), static_cast<unsigned>(n)),
                   hidden / 4, nullptr, out, context);
}

void sum_over_peers_cuda(const PeerBuffers& peers, int ranks, const float* mine, float* out, std::int64_t n,
                         const CudaContext& context) {
  launch_peer_rows(peers, ranks, mine, dim3(static_cast<unsigned>((n + kPeerTile - 1) / kPeerTile)), n / 4, out, {},
                   context);
}

void read_peer_rows_cuda(const PeerExchange& peers, float* residual, float* out, std::int64_t n,
                         const CudaContext& context) {
  launch(context, "read_peer_rows", read_peer_rows_kernel, dim3(kPeerReaders), dim3(kReadThreads), 0, peers, n / 4,
         reinterpret_cast<float4*>(residual), reinterpret_cast<float4*>(out));
}

void join_vocabulary_cuda(const float* parts, std::int32_t n, std::int32_t part, std::int32_t vocab, float* logits,
                          const CudaContext& context) {
  const dim3 grid(static_cast<unsigned>((vocab + kThreads - 1) / kThreads), static_cast<unsigned>(n));
  launch(context, "join_vocabulary", join_vocabulary_kernel, grid, dim3(kThreads), 0, parts, part, vocab, logits);
}

}  // namespace mneme
