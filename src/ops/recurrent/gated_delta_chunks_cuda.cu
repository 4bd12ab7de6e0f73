// Chunks of a prompt: what does not depend on the state in one grid (tiles_kernel), then the chunks of each value head in
// turn (scan_kernel). With G_i the sum of g up to row i and D_ij = e^{G_i - G_j} for j <= i, else 0:
//
//   T = (I + A)^-1,  A_ij = b_i (k_i k_j) D_ij for j < i,  P = (Q K^T) D
//   U = T b (V - e^G (K S));   out = e^G (Q S) + P U;   S = e^{G_last} S + K^T (e^{G_last - G} U)
//
// A chunk of fewer rows has zeros for k, q, b and g behind them, which changes no bit of those before.
#include <algorithm>

#include "src/ops/recurrent/delta_kernels.cuh"
#include "src/ops/recurrent/delta_products.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kChunk = kDeltaChunkCuda, kHead = kMaxDeltaHeadCuda;
constexpr int kThreads = 256;
// Rows in shared memory: operands that lanes read by rows are conflict-free with strides of 4 mod 32, by columns of 8.
constexpr int kWide = kHead + 4, kSquare = kChunk + 4;

// Asynchronous 16-byte copy to shared memory, or zeros.
__device__ __forceinline__ void copy_or_zero(float* to, const float* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}

// The rows of a chunk among a launch's.
struct ChunkRows {
  int first, n;
};
__device__ __forceinline__ ChunkRows rows_of(int chunk, int offset, int n) {
  const int begin = max(chunk * kChunk - offset, 0);
  return {begin, min((chunk + 1) * kChunk - offset, n) - begin};
}

// ---- T b and P of every chunk

constexpr int kHeadsAtOnce = kThreads / kChunk;

struct TilesShared {
  union {
    struct {
      float k[kChunk * kWide], q[kChunk * kWide];
    } rows;
    float a[kHeadsAtOnce][kChunk * kSquare];  // A of a value head, by columns
  };
  float k_by_k[kChunk * kSquare], q_by_k[kChunk * kSquare];
  double g[kHeadsAtOnce][kChunk];
  float b[kHeadsAtOnce][kChunk];
};

// q and k of a chunk's rows, [kChunk, kWide], zeros behind d and behind the rows.
__device__ __forceinline__ void load_rows(float* to, const float* from, const ChunkRows& rows, std::int64_t stride,
                                          int d) {
#pragma unroll 4
  for (int i = threadIdx.x; i < kChunk * kHead / 4; i += kThreads) {
    const int row = i / (kHead / 4), at = i % (kHead / 4) * 4;
    const bool inside = row < rows.n && at < d;
    copy_or_zero(to + row * kWide + at, inside ? from + (rows.first + row) * stride + at : from, inside);
  }
}

// Sums of g in f64, since a sum of large ones would lose the small ones behind it; a warp, two rows a lane.
__device__ __forceinline__ void sum_gates(const DeltaKernelArgs& a, const ChunkRows& rows, int head, double* g,
                                          float* b) {
  const int lane = threadIdx.x % kWarp;
  double own[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    const bool inside = row < rows.n;
    const float* gates = a.scratch.gates + static_cast<std::int64_t>(rows.first + row) * 2 * a.s.n_v_heads + head;
    own[i] = inside ? static_cast<double>(gates[0]) : 0.0;
    b[row] = inside ? gates[a.s.n_v_heads] : 0.0f;
  }
  double sum = own[0] + own[1];
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const double other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += other;
  }
  double before = __shfl_up_sync(~0u, sum, 1);
  if (lane == 0) before = 0.0;
  g[2 * lane] = before + own[0];
  g[2 * lane + 1] = sum;
}

// Column j of A and of P, and the chunk's decays; a thread per column.
__device__ __forceinline__ void decay_column(const TilesShared& s, const double* g, const float* b, int j, float* a,
                                             float* tile) {
  float* p = tile + kChunk * kChunk;
  for (int i = 0; i < kChunk; ++i) {
    const float decay = i < j ? 0.0f : expf(static_cast<float>(g[i] - g[j]));
    p[i * kChunk + j] = i < j ? 0.0f : s.q_by_k[i * kSquare + j] * decay;
    if (i > j) a[j * kSquare + i] = b[i] * s.k_by_k[i * kSquare + j] * decay;
  }
  float* decays = tile + 2 * kChunk * kChunk;
  decays[j] = expf(static_cast<float>(g[j]));
  decays[kChunk + j] = expf(static_cast<float>(g[kChunk - 1] - g[j]));
}

// Column j of (I + A)^-1 by forward substitution, times b_j. An inverse by doubling ends in NaN.
__device__ __forceinline__ void substitute(const float* a, float b, int j, float* tile) {
  float x[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) x[i] = i == j ? 1.0f : 0.0f;
#pragma unroll
  for (int k = 0; k + 1 < kChunk; ++k) {
#pragma unroll
    for (int i = (k + 1) / 4 * 4; i < kChunk; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(a + k * kSquare + i);
      if (i > k) x[i] = fmaf(-v.x, x[k], x[i]);
      if (i + 1 > k) x[i + 1] = fmaf(-v.y, x[k], x[i + 1]);
      if (i + 2 > k) x[i + 2] = fmaf(-v.z, x[k], x[i + 2]);
      if (i + 3 > k) x[i + 3] = fmaf(-v.w, x[k], x[i + 3]);
    }
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) tile[i * kChunk + j] = i < j ? 0.0f : x[i] * b;
}

// A thread block per chunk and key head, whose value heads share K K^T and Q K^T.
__global__ void __launch_bounds__(kThreads, 2) tiles_kernel(DeltaKernelArgs a, int offset) {
  extern __shared__ __align__(16) std::byte memory[];
  TilesShared& s = *reinterpret_cast<TilesShared*>(memory);
  grid_dependency_wait();
  launch_dependents();
  const int chunk = blockIdx.x, key_head = blockIdx.y, warp = threadIdx.x / kWarp;
  const ChunkRows rows = rows_of(chunk, offset, a.n);
  const float* q = a.scratch.convolved + key_head * a.s.d_k;
  load_rows(s.rows.k, q + a.s.key_width(), rows, a.s.channels(), a.s.d_k);
  load_rows(s.rows.q, q, rows, a.s.channels(), a.s.d_k);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  {
    float c[1][kChunk / 8][4] = {};
    const int first = warp % 4 * 16;
    multiply<1, kChunk / 8, kWide, 1, 1, kWide>(c, (warp < 4 ? s.rows.k : s.rows.q) + first * kWide, s.rows.k,
                                                (a.s.d_k + 7) / 8 * 8);
    float* to = warp < 4 ? s.k_by_k : s.q_by_k;
    for_pairs(c, first, 0, [&](int row, int column, float x, float y) {
      *reinterpret_cast<float2*>(to + row * kSquare + column) = {x, y};
    });
  }
  const int at = threadIdx.x / kChunk, j = threadIdx.x % kChunk, group = a.s.group();
  for (int first = 0; first < group; first += kHeadsAtOnce) {
    const bool active = first + at < group;
    const int head = a.s.value_head(key_head, min(first + at, group - 1));
    float* tile = a.scratch.tiles + (std::int64_t{chunk} * a.s.n_v_heads + head) * kDeltaTileFloats;
    __syncthreads();  // products are there; A of the heads before was read
    if (active && warp % 2 == 0) sum_gates(a, rows, head, s.g[at], s.b[at]);
    __syncthreads();
    if (active) decay_column(s, s.g[at], s.b[at], j, s.a[at], tile);
    __syncthreads();
    if (active) substitute(s.a[at], s.b[at][j], j, tile);
  }
}

// ---- a value head's chunks in turn, for kColumns of its d_v columns

template <int kColumns>
struct ScanShared {
  static constexpr int kNarrow = kColumns + 8;
  float state[kHead * kNarrow];
  float k[2][kChunk * kWide], q[kChunk * kWide];
  float t[kChunk * kSquare], p[kChunk * kSquare];
  float u[kChunk * kNarrow], out[kChunk * kNarrow];  // b's share of V - e^G K S, then U; e^G Q S
  float decays[2][2 * kChunk];                       // e^G, e^{G_last - G}
};

template <int kColumns>
struct Scan {
  using Shared = ScanShared<kColumns>;
  static constexpr int kNarrow = Shared::kNarrow;
  static constexpr int kTiles = kColumns / 16;  // of 8 columns, of a warp

  const DeltaKernelArgs& a;
  Shared& s;
  int offset, head, column, warp;
  const float* q;

  __device__ __forceinline__ const float* tile_of(int chunk) const {
    return a.scratch.tiles + (std::int64_t{chunk} * a.s.n_v_heads + head) * kDeltaTileFloats;
  }
  __device__ __forceinline__ void load_square(float* to, const float* from) const {
    for (int i = threadIdx.x; i < kChunk * kChunk / 4; i += kThreads)
      copy_or_zero(to + i / (kChunk / 4) * kSquare + i % (kChunk / 4) * 4, from + i * 4, true);
  }
  // q, k and decays of a chunk; nothing behind the last one.
  __device__ __forceinline__ void load_keys(int chunk, int n_chunks) const {
    if (chunk < n_chunks) {
      const ChunkRows rows = rows_of(chunk, offset, a.n);
      load_rows(s.k[chunk % 2], q + a.s.key_width(), rows, a.s.channels(), a.s.d_k);
      load_rows(s.q, q, rows, a.s.channels(), a.s.d_k);
      if (threadIdx.x < 2 * kChunk / 4)
        copy_or_zero(s.decays[chunk % 2] + threadIdx.x * 4, tile_of(chunk) + 2 * kChunk * kChunk + threadIdx.x * 4,
                     true);
    }
    copy_async_commit();
  }
  __device__ __forceinline__ void load_t(int chunk, int n_chunks) const {
    if (chunk < n_chunks) load_square(s.t, tile_of(chunk));
    copy_async_commit();
  }
  __device__ __forceinline__ void load_p(int chunk) const {
    load_square(s.p, tile_of(chunk) + kChunk * kChunk);
    copy_async_commit();
  }

  __device__ __forceinline__ void load_state(const float* from) const {
    for (int i = threadIdx.x; i < kHead * kColumns / 4; i += kThreads) {
      const int row = i / (kColumns / 4), at = i % (kColumns / 4) * 4;
      const bool inside = row < a.s.d_k && column + at < a.s.d_v;
      *reinterpret_cast<float4*>(s.state + row * kNarrow + at) =
          inside ? *reinterpret_cast<const float4*>(from + row * a.s.d_v + column + at) : float4{};
    }
  }
  __device__ __forceinline__ void store_state(float* to) const {
    for (int i = threadIdx.x; i < kHead * kColumns / 4; i += kThreads) {
      const int row = i / (kColumns / 4), at = i % (kColumns / 4) * 4;
      if (row < a.s.d_k && column + at < a.s.d_v)
        *reinterpret_cast<float4*>(to + row * a.s.d_v + column + at) =
            *reinterpret_cast<const float4*>(s.state + row * kNarrow + at);
    }
  }

  // V - e^G (K S) into u by four warps, e^G (Q S) into out by the others; a warp has 32 rows and half the columns.
  __device__ __forceinline__ void read_state(const ChunkRows& rows, int chunk) const {
    const bool of_keys = warp < 4;
    const int first = warp % 4 / 2 * 32, left = warp % 2 * kColumns / 2;
    const float* from_start = s.decays[chunk % 2];
    const float* v = a.scratch.convolved + 2 * a.s.key_width() + head * a.s.d_v;
    float c[2][kTiles][4] = {}, values[2][kTiles][4] = {};
    if (of_keys)
      for_pairs(values, first, left, [&](int row, int at, float& x, float& y) {
        if (row >= rows.n || column + at >= a.s.d_v) return;
        const float2 two = *reinterpret_cast<const float2*>(
            v + static_cast<std::int64_t>(rows.first + row) * a.s.channels() + column + at);
        x = two.x, y = two.y;
      });
    multiply<2, kTiles, kWide, 1, kNarrow, 1>(c, (of_keys ? s.k[chunk % 2] : s.q) + first * kWide, s.state + left,
                                              (a.s.d_k + 7) / 8 * 8);
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = first + 16 * m + i / 2 * 8 + static_cast<int>(threadIdx.x) % kWarp / 4;
          const float x = from_start[row] * c[m][n][i];
          c[m][n][i] = of_keys ? values[m][n][i] - x : x;
        }
    float* to = of_keys ? s.u : s.out;
    for_pairs(c, first, left, [&](int row, int at, float x, float y) {
      *reinterpret_cast<float2*>(to + row * kNarrow + at) = {x, y};
    });
  }

  // e^G (Q S) + P U to the rows' output.   Of a warp: 16 rows, half the columns; P is 0 behind them
  __device__ __forceinline__ void store_out(const ChunkRows& rows) const {
    const int first = warp / 2 * 16, left = warp % 2 * kColumns / 2;
    float c[1][kTiles][4];
    for_pairs(c, first, left, [&](int row, int at, float& x, float& y) {
      const float2 two = *reinterpret_cast<const float2*>(s.out + row * kNarrow + at);
      x = two.x, y = two.y;
    });
    multiply<1, kTiles, kSquare, 1, kNarrow, 1>(c, s.p + first * kSquare, s.u + left, first + 16);
    float* to = a.scratch.out + head * a.s.d_v + column;
    for_pairs(c, first, left, [&](int row, int at, float x, float y) {
      if (row < rows.n && column + at < a.s.d_v)
        *reinterpret_cast<float2*>(to + static_cast<std::int64_t>(rows.first + row) * a.s.value_width() + at) = {x, y};
    });
  }

  // S = e^{G_last} S + K^T (e^{G_last - G} U).   Of a warp: 32 rows of S, half the columns
  __device__ __forceinline__ void update_state(int chunk) const {
    const int first = warp / 2 * 32, left = warp % 2 * kColumns / 2;
    const float* decays = s.decays[chunk % 2];
    const float whole = decays[kChunk - 1];
    float c[2][kTiles][4];
    for_pairs(c, first, left, [&](int row, int at, float& x, float& y) {
      const float2 two = *reinterpret_cast<const float2*>(s.state + row * kNarrow + at);
      x = whole * two.x, y = whole * two.y;
    });
    multiply<2, kTiles, 1, kWide, kNarrow, 1, true>(c, s.k[chunk % 2] + first, s.u + left, kChunk, decays + kChunk);
    for_pairs(c, first, left, [&](int row, int at, float x, float y) {
      *reinterpret_cast<float2*>(s.state + row * kNarrow + at) = {x, y};
    });
  }

  // Copies are in three groups a chunk, each waited for with the one behind it in flight: p of this chunk, then q, k and
  // decays, then t of the next one. Every barrier also frees what the next copies overwrite.
  __device__ __forceinline__ void run(int n_chunks) const {
    load_keys(0, n_chunks);
    load_t(0, n_chunks);
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      const ChunkRows rows = rows_of(chunk, offset, a.n);
      copy_async_wait<1>();
      __syncthreads();  // q, k, decays and S are there; p and out were read
      load_p(chunk);
      read_state(rows, chunk);
      copy_async_wait<1>();
      __syncthreads();  // t, u and out are there; q was read
      load_keys(chunk + 1, n_chunks);
      const int first = warp / 2 * 16, left = warp % 2 * kColumns / 2;
      float c[1][kTiles][4] = {};
      multiply<1, kTiles, kSquare, 1, kNarrow, 1>(c, s.t + first * kSquare, s.u + left, first + 16);
      copy_async_wait<1>();
      __syncthreads();  // p is there; t and u were read
      load_t(chunk + 1, n_chunks);
      for_pairs(c, first, left, [&](int row, int at, float x, float y) {
        *reinterpret_cast<float2*>(s.u + row * kNarrow + at) = {x, y};
      });
      __syncthreads();
      store_out(rows);
      update_state(chunk);
    }
    copy_async_wait<0>();
    __syncthreads();
  }
};

template <int kColumns>
__global__ void __launch_bounds__(kThreads, 1) scan_kernel(DeltaKernelArgs a, int offset, int n_chunks) {
  extern __shared__ __align__(16) std::byte memory[];
  grid_dependency_wait();
  launch_dependents();
  const int head = blockIdx.x;
  const Scan<kColumns> scan{.a = a,
                            .s = *reinterpret_cast<ScanShared<kColumns>*>(memory),
                            .offset = offset,
                            .head = head,
                            .column = static_cast<int>(blockIdx.y) * kColumns,
                            .warp = static_cast<int>(threadIdx.x) / kWarp,
                            .q = a.scratch.convolved + a.s.key_head(head) * a.s.d_k};
  float* state = a.state_of(a.slot) + a.s.state_at(head);
  scan.load_state(state);
  scan.run(n_chunks);
  scan.store_state(state);
}

template <int kColumns>
void launch_scan(const DeltaKernelArgs& a, std::int32_t offset, std::int32_t n_chunks, const CudaContext& context) {
  launch_shared<scan_kernel<kColumns>>(context, "Gated DeltaNet: chunks",
                                       grid_of(a.s.n_v_heads, (a.s.d_v + kColumns - 1) / kColumns), kThreads,
                                       sizeof(ScanShared<kColumns>), a, offset, n_chunks);
}

}  // namespace

bool delta_chunks_on_device() {
  static const auto most = static_cast<std::size_t>(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  return sizeof(ScanShared<64>) <= most;
}

void delta_chunks_cuda(const DeltaKernelArgs& a, std::int32_t offset, const CudaContext& context) {
  const std::int32_t n_chunks = (offset + a.n + kChunk - 1) / kChunk;
  launch_shared<tiles_kernel>(context, "Gated DeltaNet: products of chunks", grid_of(n_chunks, a.s.n_k_heads), kThreads,
                              sizeof(TilesShared), a, offset);
  // Wide columns read q, k, T and P fewer times; narrow ones keep more of the device busy.
  const bool wide = a.s.n_v_heads * ((a.s.d_v + 63) / 64) * 2 > sm_count();
  wide ? launch_scan<64>(a, offset, n_chunks, context) : launch_scan<32>(a, offset, n_chunks, context);
}

}  // namespace mneme
