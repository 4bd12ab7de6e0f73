// k-means assignment as a GEMM of tokens with centroids by 8-bit integer mma. Under kDistance x has 8 bits. Under
// kCosine x is two digits, x = 256 a + r with r unsigned; each of the four products of digits is exact in int32, and so
// is
//
//   x . c = 2^16 (a . a') + 2^8 (a . r' + r . a') + r . r'
//
// even if intermediate values overflow.
//
// A warp holds 32 tokens in registers; tiles of 64 centroids are staged in shared memory, and each token's best is
// tracked with the sums. Under kDistance a product is below 2^22, so the centroid's index within its tile is packed
// into the 4 bits below it and one max keeps both: separate comparisons cost as much as the multiplication.
//
// A token that changes its cluster moves its x from one sum to the other: in late iterations few do, and summing all
// tokens again took three quarters of the time of the GEMM.
#include <climits>

#include "src/cuda/memory.h"
#include "src/offload/list_dim.cuh"
#include "src/selection/cluster/kmeans_update.cuh"

namespace mneme {
namespace {

using namespace cuda;          // NOLINT
using namespace cuda::kmeans;  // NOLINT

constexpr int kAssignThreads = 128, kAssignWarps = kAssignThreads / kWarp;
constexpr int kTokensEach = 32;  // tokens per warp that assigns
constexpr int kStages = 3;       // tiles in flight, for one barrier per tile

// ---- assignment of tokens to centroids

// c += a b; kA, kB: signed operands.
template <bool kA, bool kB>
__device__ __forceinline__ void multiply(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#define MNEME_MMA(A, B)                                                                                             \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." A "." B ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                                              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (kA && kB) {
    MNEME_MMA("s8", "s8");
  } else if constexpr (kA) {
    MNEME_MMA("s8", "u8");
  } else if constexpr (kB) {
    MNEME_MMA("u8", "s8");
  } else {
    MNEME_MMA("u8", "u8");
  }
#undef MNEME_MMA
}

// Rows of kDim bytes in shared memory, their 16-byte pieces swizzled so that eight rows' are in different banks.
template <int kDim>
__device__ __forceinline__ std::uint32_t plane_address(std::uint32_t plane, int row, int piece) {
  const int swizzled = kDim >= 128 ? piece ^ (row & 7) : piece ^ ((row >> 1) & 3);
  return plane + row * kDim + swizzled * 16;
}

template <int kDim, int kN>
struct TokenDigits {
  static constexpr int kSteps = kDim / 32;
  std::uint32_t of[kN][kSteps][4];

  // Loads tokens first .. first + 15, zeros beyond n.
  __device__ __forceinline__ void load(const KmeansArgs& p, int head, int first) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + g + i % 2 * 8;
      const std::uint8_t* x = token_digits<kDim, kN>(p, head, row) + i / 2 * 16 + 4 * t;
#pragma unroll
      for (int plane = 0; plane < kN; ++plane)
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
          of[plane][s][i] =
              row < p.n ? *reinterpret_cast<const std::uint32_t*>(x + plane * token_plane<kDim>(p) + 32 * s) : 0;
    }
  }
};

// The best of 8 centroids for 16 tokens. b: [plane][k step, half]; at: the first of the lane's two centroids.
template <int kDim>
__device__ __forceinline__ void compare_cosine(const TokenDigits<kDim, 2>& x, const std::uint32_t (&b)[2][kDim / 16],
                                               int2 bias, int at, int (&best)[2], int (&where)[2]) {
  int high[4] = {}, mixed[4] = {}, low[4] = {bias.x, bias.y, bias.x, bias.y};
#pragma unroll
  for (int s = 0; s < kDim / 32; ++s) {
    multiply<true, true>(high, x.of[0][s], b[0][2 * s], b[0][2 * s + 1]);
    multiply<true, false>(mixed, x.of[0][s], b[1][2 * s], b[1][2 * s + 1]);
    multiply<false, true>(mixed, x.of[1][s], b[0][2 * s], b[0][2 * s + 1]);
    multiply<false, false>(low, x.of[1][s], b[1][2 * s], b[1][2 * s + 1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Unsigned: intermediate overflow wraps and cancels.
    const auto h = static_cast<unsigned>(high[i]), m = static_cast<unsigned>(mixed[i]);
    const int v = static_cast<int>((((h << 8) + m) << 8) + static_cast<unsigned>(low[i]));
    if (v > best[i / 2]) best[i / 2] = v, where[i / 2] = at + i % 2;
  }
}

// The same for the tile's j-th eight: the best products with 15 - (2 j + column) in the low bits, so that among equals
// the first is largest.
template <int kDim>
__device__ __forceinline__ void compare_distance(const TokenDigits<kDim, 1>& x, const std::uint32_t (&b)[1][kDim / 16],
                                                 int2 bias, int j, int (&best)[2]) {
  int sum[4] = {bias.x, bias.y, bias.x, bias.y};
#pragma unroll
  for (int s = 0; s < kDim / 32; ++s) multiply<true, true>(sum, x.of[0][s], b[0][2 * s], b[0][2 * s + 1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) best[i / 2] = max(best[i / 2], sum[i] * 16 + (15 - 2 * j - i % 2));
}

template <int kDim, KmeansMetric kMetric>
__global__ void __launch_bounds__(kAssignThreads, kMetric == KmeansMetric::kDistance ? 4 : 3)
    assign_kernel(KmeansArgs p, int iteration) {
  constexpr int kN = kPlanes<kMetric>;
  constexpr int kPlaneBytes = kTile * kDim, kStage = kN * kPlaneBytes;
  constexpr int kPieces = kDim / 16;
  static_assert(kTile / 8 * 2 == 16);  // centroids per lane
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ alignas(16) std::int32_t bias[kStages][kTile];
  const int tid = threadIdx.x, lane = tid % kWarp, t = lane % 4, head = blockIdx.y;
  const int first = (blockIdx.x * kAssignWarps + tid / kWarp) * kTokensEach;
  if (iteration > 0 && !changed(p, head, iteration - 1)) return;
  const std::uint8_t* planes = p.planes + static_cast<std::int64_t>(head) * kN * p.padded * kDim;
  const auto fetch = [&](int tile) {
    if (tile * kTile < p.padded) {
      const std::uint32_t to = shared_address(memory + tile % kStages * kStage);
#pragma unroll
      for (int base = 0; base < kN * kTile * kPieces; base += kAssignThreads) {
        const int i = base + tid;
        const int plane = i / (kTile * kPieces), row = i / kPieces % kTile, piece = i % kPieces;
        copy_async(plane_address<kDim>(to + plane * kPlaneBytes, row, piece),
                   planes + (static_cast<std::int64_t>(plane) * p.padded + tile * kTile + row) * kDim + piece * 16);
      }
      if (tid < kTile / 4)
        copy_async(shared_address(&bias[tile % kStages][tid * 4]), p.bias + head * p.padded + tile * kTile + tid * 4);
    }
    copy_async_commit();
  };
#pragma unroll
  for (int tile = 0; tile < kStages - 1; ++tile) fetch(tile);
  TokenDigits<kDim, kN> x[2];
#pragma unroll
  for (int m = 0; m < 2; ++m) x[m].load(p, head, first + 16 * m);
  int best[2][2], where[2][2];
#pragma unroll
  for (int m = 0; m < 2; ++m) best[m][0] = best[m][1] = INT_MIN, where[m][0] = where[m][1] = 0xffff;

  for (int tile = 0; tile * kTile < p.padded; ++tile) {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    fetch(tile + kStages - 1);
    const std::uint32_t at = shared_address(memory + tile % kStages * kStage);
    int of_tile[2][2] = {{INT_MIN, INT_MIN}, {INT_MIN, INT_MIN}};
#pragma unroll(kN == 1 ? 4 : 1)
    for (int j = 0; j < kTile / 8; ++j) {
      std::uint32_t b[kN][kDim / 16];
#pragma unroll
      for (int plane = 0; plane < kN; ++plane)
#pragma unroll
        for (int q = 0; q < kDim / 64; ++q) {
          std::uint32_t four[4];
          load_matrices(four, plane_address<kDim>(at + plane * kPlaneBytes, j * 8 + lane % 8, q * 4 + lane / 8));
#pragma unroll
          for (int i = 0; i < 4; ++i) b[plane][q * 4 + i] = four[i];
        }
      const int2 base = *reinterpret_cast<const int2*>(&bias[tile % kStages][j * 8 + 2 * t]);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if constexpr (kN == 1) {
          compare_distance<kDim>(x[m], b, base, j, of_tile[m]);
        } else {
          compare_cosine<kDim>(x[m], b, base, tile * kTile + j * 8 + 2 * t, best[m], where[m]);
        }
      }
    }
    if constexpr (kN == 1) {
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int v = of_tile[m][r] >> 4, nth = 15 - (of_tile[m][r] & 15);
          if (v > best[m][r]) best[m][r] = v, where[m][r] = tile * kTile + nth / 2 * 8 + 2 * t + nth % 2;
        }
    }
  }
  copy_async_wait<0>();
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int v = best[m][r], c = where[m][r];
#pragma unroll
      for (int d = 1; d < 4; d *= 2) {
        const int other = __shfl_xor_sync(~0u, v, d), other_c = __shfl_xor_sync(~0u, c, d);
        if (other > v || (other == v && other_c < c)) v = other, c = other_c;
      }
      where[m][r] = c;
    }
  // Lane 4 g + t has token 8 t + g of the warp's; the lane of that number stores it.
  int c = t == 0 ? where[0][0] : t == 1 ? where[0][1] : t == 2 ? where[1][0] : where[1][1];
  c = __shfl_sync(~0u, c, lane % 8 * 4 + lane / 8);
  const bool is_token = first + lane < p.n;
  std::uint16_t* cluster = p.cluster + static_cast<std::int64_t>(head) * p.n + first + lane;
  const int before = is_token && iteration > 0 ? *cluster : -1;
  if (is_token) *cluster = static_cast<std::uint16_t>(c);
  const bool moves = is_token && c != before;
  if (iteration + 1 == p.iterations || !__any_sync(~0u, moves)) return;
  if (lane == 0) p.moved[2 * head + iteration % 2] = iteration;
  move_tokens<kDim, kMetric>(p, head, first, moves ? c : -1, 1);
  if (iteration > 0) move_tokens<kDim, kMetric>(p, head, first, moves ? before : -1, -1);
}

// ---- launches

KmeansArgs sizes_of(int n, int head_dim, int n_clusters) {
  KmeansArgs a{};
  a.n = n, a.dim = head_dim, a.n_clusters = n_clusters;
  a.padded = (n_clusters + kTile - 1) / kTile * kTile;
  a.n_pieces = (n + kKmeansPiece - 1) / kKmeansPiece;
  return a;
}

// The arrays in scratch memory.
ArenaLayout arrays_of(KmeansArgs& a, int heads) {
  const auto h = static_cast<std::size_t>(heads), n = static_cast<std::size_t>(a.n),
             d = static_cast<std::size_t>(list_dim(a.dim)), c = static_cast<std::size_t>(a.padded),
             pieces = static_cast<std::size_t>(a.n_pieces);
  ArenaLayout arrays;
  arrays.add(a.x, h * kMaxPlanes * n * d);
  arrays.add(a.planes, h * kMaxPlanes * c * d);
  arrays.add(a.bias, h * c * 4);
  arrays.add(a.pieces, h * pieces * d * 4);
  arrays.add(a.counts, h * pieces * 4);
  arrays.add(a.mean, h * d * 4);
  arrays.add(a.spread, h * pieces * 8);
  arrays.add(a.sums, h * c * d * 4);
  arrays.add(a.sizes, h * c * 4);
  arrays.add(a.moved, h * 2 * 4);
  return arrays;
}

template <typename T, int kDim, KmeansMetric kMetric>
void run(const KmeansCuda& k, const KmeansArgs& a, const CudaContext& context) {
  constexpr std::size_t kAssignBytes = kStages * kPlanes<kMetric> * kTile * kDim;
  const auto grid = [&](int items, int each) { return grid_of((items + each - 1) / each, k.n_heads); };
  const dim3 pieces = grid(a.n_pieces, kPieceThreads / kPieceLanes<kDim>);
  launch(context, "kmeans_mean", pieces_kernel<T, kDim, false>, pieces, kPieceThreads, 0, a);
  if (kMetric == KmeansMetric::kDistance)
    launch(context, "kmeans_spread", pieces_kernel<T, kDim, true>, pieces, kPieceThreads, 0, a);
  launch(context, "kmeans_round", round_kernel<T, kDim, kMetric>, grid(a.n, kWarps * kRoundTokens), kThreads, 0, a);
  for (int i = 0; i < k.iterations; ++i) {
    launch_shared<assign_kernel<kDim, kMetric>>(context, "kmeans_assign", grid(a.n, kAssignWarps * kTokensEach),
                                                kAssignThreads, kAssignBytes, a, i);
    if (i + 1 < k.iterations)
      launch(context, "kmeans_update", update_kernel<kDim, kMetric>, grid(a.n_clusters, kWarps), kThreads, 0, a, i);
  }
}

template <typename T>
void run_as(const KmeansCuda& k, const KmeansArgs& a, const CudaContext& context) {
  const bool distance = k.metric == KmeansMetric::kDistance;
  with_list_dim(k.head_dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
    distance ? run<T, kDim, KmeansMetric::kDistance>(k, a, context)
             : run<T, kDim, KmeansMetric::kCosine>(k, a, context);
  });
}

}  // namespace

std::size_t kmeans_scratch_bytes(std::int32_t n_heads, std::int32_t n, std::int32_t head_dim, std::int32_t n_clusters) {
  KmeansArgs a = sizes_of(n, head_dim, n_clusters);
  return arrays_of(a, n_heads).total();
}

void kmeans_cuda(const KmeansCuda& k, const CudaContext& context) {
  KmeansArgs a = sizes_of(k.n, k.head_dim, k.n_clusters);
  a.keys = reinterpret_cast<const std::uint16_t*>(k.keys);
  a.cluster = k.cluster;
  a.iterations = k.iterations;
  arrays_of(a, k.n_heads).assign(k.scratch);
  k.f16 ? run_as<__half>(k, a, context) : run_as<__nv_bfloat16>(k, a, context);
}

}  // namespace mneme
