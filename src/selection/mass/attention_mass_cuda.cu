// A warp keeps the keys of one page in registers while tiles of 16 query rows of one head pass through shared memory;
// the eight pages of a thread block are a KV split. Two kinds of kernel: one writes the maximum and the sum of each row
// in a split, the other sums each token's probabilities over the rows. With one row, the heads of the group form a
// tile.
//
// Channels are permuted so that a lane loads 16 bytes of a key at once: lane (g, t) has channels 8 t .. 8 t + 7 of
// every 32, as four registers of two mma; rows of q are read in the same order.
#include "src/selection/mass/attention_mass_cuda.h"

#include <algorithm>

#include "src/kv/kv_codes.cuh"
#include "src/ops/attention/attention_page.cuh"
#include "src/ops/attention/head_dims_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTileRows = 16;
constexpr int kKvSplitTokens = kWarps * kKvPageTokens;

struct MassArgs {
  AttentionMassCuda a;
  KvTables tables;
  int layer, group, n_kv_splits;
  float2* partial;  // [row][head][KV split]: maximum (base 2) and sum
};

enum class Kind { kLse, kMass };

template <int kDim>
struct TileShape {
  static constexpr int kWide = kDim / 32;       // steps of 32 channels
  static constexpr bool kRest = kDim % 32 > 0;  // and one of 16
  static constexpr int kRowPieces = kDim / 8, kPieces = kTileRows * kRowPieces, kBytes = kPieces * 16;
};

// A 16-byte piece of a tile, swizzled: rows of a pair are in different banks.
template <int kDim>
__device__ __forceinline__ std::uint32_t tile_piece(std::uint32_t tile, int row, int piece) {
  const int swizzled = piece < TileShape<kDim>::kWide * 4 ? piece ^ ((row & 1) << 2) : piece;
  const bool inside = TileShape<kDim>::kWide % 2 == 0 || swizzled < TileShape<kDim>::kWide * 4;
  return tile + (row * TileShape<kDim>::kRowPieces + (inside ? swizzled : piece)) * 16;
}

template <typename T>
__device__ __forceinline__ std::uint32_t as_key_type(std::uint32_t v) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return v;
  const float2 f = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
  return pack<T>(f.x, f.y);
}

// The keys of a page; lane (g, t) has tokens 8 j + g.
template <typename T, int kDim>
struct PageKeys {
  using Shape = TileShape<kDim>;
  using E = ReadAs<T>;
  uint4 wide[kTokenTiles][Shape::kWide];
  uint2 rest[kTokenTiles];

  __device__ __forceinline__ void load(const std::byte* block, KvCodes codes) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      constexpr int kTokenBytes = std::is_same_v<T, EightBit> ? 2 * kDim + 8 : 4 * kDim;
      const std::byte* key = block + (j * 8 + g) * kTokenBytes;
      const KvRow<T> row(key, kDim, codes);
#pragma unroll
      for (int k = 0; k < Shape::kWide; ++k) wide[j][k] = row.eight(k * 32 + t * 8);
      if constexpr (Shape::kRest) rest[j] = __ldcg(reinterpret_cast<const uint2*>(key + Shape::kWide * 64 + t * 8));
    }
  }

  // s[j]: dot products of the tile's rows with tokens 8 j .. 8 j + 7.
  __device__ __forceinline__ void score(float (&s)[kTokenTiles][4], std::uint32_t tile) const {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
    for (auto& c : s) c[0] = c[1] = c[2] = c[3] = 0;
#pragma unroll
    for (int k = 0; k < Shape::kWide; ++k) {
      const uint4 low = load_shared<uint4>(tile_piece<kDim>(tile, g, k * 4 + t)),
                  high = load_shared<uint4>(tile_piece<kDim>(tile, g + 8, k * 4 + t));
      const std::uint32_t a[8] = {as_key_type<E>(low.x),  as_key_type<E>(high.x), as_key_type<E>(low.y),
                                  as_key_type<E>(high.y), as_key_type<E>(low.z),  as_key_type<E>(high.z),
                                  as_key_type<E>(low.w),  as_key_type<E>(high.w)};
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
        mma<E>(s[j], a[0], a[1], a[2], a[3], wide[j][k].x, wide[j][k].y);
        mma<E>(s[j], a[4], a[5], a[6], a[7], wide[j][k].z, wide[j][k].w);
      }
    }
    if constexpr (Shape::kRest) {
      const auto piece = [&](int row) {
        return load_shared<uint2>(tile_piece<kDim>(tile, row, Shape::kWide * 4 + t / 2) + t % 2 * 8);
      };
      const uint2 low = piece(g), high = piece(g + 8);
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j)
        mma<E>(s[j], as_key_type<E>(low.x), as_key_type<E>(high.x), as_key_type<E>(low.y), as_key_type<E>(high.y),
               rest[j].x, rest[j].y);
    }
  }
};

// Copies rows [first, first + 16) of one head to shared memory; rows out of range become zeros.
template <int kDim>
__device__ __forceinline__ void fetch_tile(std::uint32_t tile, const __nv_bfloat16* q, std::int64_t row_stride,
                                           int first, int n_rows) {
  using Shape = TileShape<kDim>;
  for (int i = threadIdx.x; i < Shape::kPieces; i += kThreads) {
    const int row = i / Shape::kRowPieces, piece = i % Shape::kRowPieces;
    const bool has = first + row < n_rows;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tile_piece<kDim>(tile, row, piece)),
                 "l"(q + (has ? first + row : 0) * row_stride + piece * 8), "r"(has ? 16 : 0));
  }
  copy_async_commit();
}

// A row's maximum and sum over this warp's page, from a lane's part.
__device__ __forceinline__ float2 page_sum(const float (&s)[kTokenTiles][4], int row) {
  float max = -INFINITY, sum = 0;
  bool nan = false;
#pragma unroll
  for (const auto& c : s) {
    max = fmaxf(max, fmaxf(c[2 * row], c[2 * row + 1]));
    nan = nan || isnan(c[2 * row]) || isnan(c[2 * row + 1]);
  }
  max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
  max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
  const float base = max == -INFINITY ? 0.0f : max;
#pragma unroll
  for (const auto& c : s) sum += exp2f(c[2 * row] - base) + exp2f(c[2 * row + 1] - base);
  if (nan) sum = NAN;
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  return {max, sum};
}

__device__ __forceinline__ float2 merged(float2 a, float2 b) {
  const float max = fmaxf(a.x, b.x), base = max == -INFINITY ? 0.0f : max;
  return {max, a.y * exp2f(a.x - base) + b.y * exp2f(b.x - base)};
}

// Writes the mass of the page's tokens below `end`, reduced over the lanes that have rows of one token, and clears it.
__device__ __forceinline__ void write_token_mass(float (&mass)[kTokenTiles][2], int page_begin, int end, float* out) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float v = mass[j][c];
      v += __shfl_xor_sync(~0u, v, 4);
      v += __shfl_xor_sync(~0u, v, 8);
      v += __shfl_xor_sync(~0u, v, 16);
      const int token = page_begin + j * 8 + 2 * t + c;
      if (g == 0 && token < end) out[token] = v;
      mass[j][c] = 0;
    }
}

// Writes s of the one row's query heads, out [group, stride], for the page's tokens below `end`.
__device__ __forceinline__ void write_head_rows(const float (&s)[kTokenTiles][4], int group, int page_begin, int end,
                                                float* out, std::int64_t stride) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int token = page_begin + j * 8 + 2 * t + c % 2, head = g + 8 * (c / 2);
      if (head < group && token < end) out[head * stride + token] = s[j][c];
    }
}

template <typename T, int kDim, Kind kKind>
__global__ void __launch_bounds__(kThreads, kDim <= 128 ? 2 : 1) mass_kernel(MassArgs p) {
  __shared__ __align__(128) std::uint8_t tiles[2][TileShape<kDim>::kBytes];
  __shared__ float2 part[2][kWarps][kTileRows];
  launch_dependents();
  grid_dependency_wait();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int kv_head = blockIdx.y, sequence = blockIdx.z;
  const int slot = p.a.slots == nullptr ? 0 : p.a.slots[sequence];
  int length = p.a.lengths[sequence];
  if (length <= 0 || slot < 0) return;
  length -= shift_of(p.tables, p.layer, slot, kv_head);
  const std::int64_t entry = table_at(p.tables, p.layer, slot, kv_head),
                     mass_at = (p.a.mass_rows == nullptr ? sequence : p.a.mass_rows[sequence]) * p.a.sequence_stride;
  const int n_rows = p.a.n_rows, first_row_slot = length - n_rows, row_tiles = (n_rows + kTileRows - 1) / kTileRows;
  const std::int64_t row_stride = static_cast<std::int64_t>(p.a.n_heads) * kDim;
  const auto* q = static_cast<const __nv_bfloat16*>(p.a.q) + sequence * n_rows * row_stride +
                  static_cast<std::int64_t>(kv_head) * p.group * kDim;
  const float* lse = p.a.lse + static_cast<std::int64_t>(sequence) * n_rows * p.a.n_heads +
                     static_cast<std::int64_t>(kv_head) * p.group;
  const bool one_row = n_rows == 1;
  const int tile_end = one_row ? p.group : n_rows;  // tile rows in total
  const float factor = p.a.scale * kLog2e;
  const int end = static_cast<int>(min(static_cast<std::int64_t>(length), p.a.mass_stride));  // of tokens written
  const auto tile_of = [&](int i) { return shared_address(tiles) + i % 2 * TileShape<kDim>::kBytes; };

  for (int kv_split = blockIdx.x; kv_split * kKvSplitTokens < length; kv_split += gridDim.x) {
    const int begin = kv_split * kKvSplitTokens, page_begin = begin + warp * kKvPageTokens;
    const bool has_page = page_begin < length;
    const std::uint32_t there = !has_page                   ? 0
                                : p.tables.masks == nullptr ? ~0u
                                                            : p.tables.masks[entry + page_begin / kKvPageTokens];
    PageKeys<T, kDim> keys;
    // A warp without a page computes with another's and discards the result.
    const int page = has_page ? page_begin / kKvPageTokens : begin / kKvPageTokens;
    keys.load(p.tables.base + p.tables.blocks[entry + page] * (token_bytes(p.tables) * kKvPageTokens), p.tables.codes);

    // First tile of rows that attend any token of the split; the same for every head of the group.
    const int first_tile = max(0, begin - first_row_slot) / kTileRows, each = row_tiles - first_tile;
    const int n_tiles = one_row ? 1 : p.group * each;
    const auto fetch = [&](int i) {
      if (one_row) return fetch_tile<kDim>(tile_of(i), q, kDim, 0, p.group);
      const int head = i / each, row = (first_tile + i % each) * kTileRows;
      fetch_tile<kDim>(tile_of(i), q + static_cast<std::int64_t>(head) * kDim, row_stride, row, n_rows);
    };
    const auto finish_rows = [&](int i) {  // of tile i, whose parts are complete
      if constexpr (kKind == Kind::kLse) {
        const int row = (first_tile + i % each) * kTileRows + static_cast<int>(threadIdx.x);
        if (threadIdx.x >= kTileRows || row >= tile_end) return;
        float2 all = part[i % 2][0][threadIdx.x];
        for (int w = 1; w < kWarps; ++w) all = merged(all, part[i % 2][w][threadIdx.x]);
        const std::int64_t of = one_row ? row : static_cast<std::int64_t>(row) * p.a.n_heads + i / each;
        p.partial[(of + kv_head * p.group) * p.n_kv_splits + kv_split] = all;
      }
    };
    float mass[kTokenTiles][2] = {};
    const auto write_mass = [&](int head) {
      if constexpr (kKind == Kind::kMass) {
        const std::int64_t row = p.a.by == MassBy::kGroup ? kv_head : kv_head * p.group + head;
        write_token_mass(mass, page_begin, end, p.a.mass + mass_at + row * p.a.mass_stride);
      }
    };

    __syncthreads();  // the previous split no longer uses the tiles
    fetch(0);
    for (int i = 0; i < n_tiles; ++i) {
      copy_async_wait<0>();
      __syncthreads();
      if (i + 1 < n_tiles) fetch(i + 1);
      if (i > 0) finish_rows(i - 1);
      const int head = i / each, first_row = (first_tile + i % each) * kTileRows;
      float s[kTokenTiles][4];
      keys.score(s, tile_of(i));
      const int rows[2] = {first_row + g, first_row + g + 8};
      float base[2] = {0, 0};
      if constexpr (kKind == Kind::kMass) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (rows[r] < tile_end)
            base[r] = lse[one_row ? rows[r] : static_cast<std::int64_t>(rows[r]) * p.a.n_heads + head] * kLog2e;
      }
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int at = j * 8 + 2 * t + c % 2, row = rows[c / 2];
          const bool seen =
              row < tile_end && page_begin + at <= first_row_slot + (one_row ? 0 : row) && (there >> at & 1) != 0;
          if constexpr (kKind == Kind::kLse) {
            s[j][c] = seen ? s[j][c] * factor : -INFINITY;
          } else {
            s[j][c] = seen ? exp2f(s[j][c] * factor - base[c / 2]) : 0.0f;
            mass[j][c % 2] += s[j][c];
          }
        }
      if (one_row && (kKind == Kind::kLse ? p.a.scores != nullptr : p.a.by == MassBy::kQueryHead)) {
        float* out = (kKind == Kind::kLse ? p.a.scores : p.a.mass + mass_at) +
                     static_cast<std::int64_t>(kv_head) * p.group * p.a.mass_stride;
        write_head_rows(s, p.group, page_begin, end, out, p.a.mass_stride);
      }
      if constexpr (kKind == Kind::kLse) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 sum = page_sum(s, r);
          if (t == 0) part[i % 2][warp][g + 8 * r] = sum;
        }
      } else {
        if (p.a.by == MassBy::kQueryHead && !one_row && (i + 1) % each == 0) write_mass(head);
      }
    }
    if constexpr (kKind == Kind::kLse) {
      __syncthreads();
      finish_rows(n_tiles - 1);
    } else {
      if (p.a.by == MassBy::kGroup) write_mass(0);
    }
  }
}

// One warp per (row, head): merges its KV splits, as far as the row attends any of them.
__global__ void __launch_bounds__(kThreads) lse_kernel(MassArgs p) {
  launch_dependents();
  grid_dependency_wait();
  const int item = blockIdx.x * kWarps + static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (item >= p.a.n_rows * p.a.n_heads) return;
  const int row = item / p.a.n_heads, kv_head = item % p.a.n_heads / p.group;
  const int slot = p.a.slots == nullptr ? 0 : p.a.slots[0];
  const int length = p.a.lengths[0] - shift_of(p.tables, p.layer, slot, kv_head);
  // A tile starts where its first row attends a token; for the other rows the splits hold -inf.
  const int kv_splits = (length - p.a.n_rows + row) / kKvSplitTokens + 1;
  float2 all = {-INFINITY, 0};
  for (int i = lane; i < kv_splits; i += kWarp)
    all = merged(all, p.partial[static_cast<std::int64_t>(item) * p.n_kv_splits + i]);
#pragma unroll
  for (int k = kWarp / 2; k > 0; k /= 2)
    all = merged(all, {__shfl_xor_sync(~0u, all.x, k), __shfl_xor_sync(~0u, all.y, k)});
  if (lane == 0) p.a.lse[item] = (all.x + log2f(all.y)) / kLog2e;
}

template <Kind kKind>
void run(const MassArgs& args, const CudaContext& context) {
  with_head_dim(args.tables.head_dim, [&]<int kDim>(std::integral_constant<int, kDim>) {
    with_kv_type(args.tables, [&]<typename T>(T) {
      if constexpr (!std::is_same_v<T, EightBit> || takes_eight_bit(kDim))
        launch(context, kKind == Kind::kLse ? "attention_lse" : "attention_mass", mass_kernel<T, kDim, kKind>,
               grid_of(args.n_kv_splits, args.tables.n_kv_heads, args.a.n), kThreads, 0, args);
    });
  });
}

__global__ void __launch_bounds__(kThreads)
    moments_kernel(const float* row, std::int64_t n, float* sums, float* squares, float* entropy) {
  launch_dependents();
  grid_dependency_wait();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const float a = row[i];
  sums[i] += a;
  squares[i] += a * a;
  entropy[i] -= a * logf(a + 1e-10f);
}

int kv_splits_of(std::int32_t tokens) {
  return (tokens + kKvSplitTokens - 1) / kKvSplitTokens;
}
MassArgs args_of(const AttentionMassCuda& a, const KvTables& tables, std::int32_t layer) {
  return {a, tables, layer, a.n_heads / tables.n_kv_heads, kv_splits_of(a.max_tokens), nullptr};
}

}  // namespace

void attention_mass_cuda(const AttentionMassCuda& a, const KvTables& tables, std::int32_t layer,
                         const CudaContext& context) {
  if (a.n == 0 || a.n_rows == 0) return;
  run<Kind::kMass>(args_of(a, tables, layer), context);
}

std::size_t attention_lse_scratch_bytes(std::int32_t n_rows, std::int32_t n_heads, std::int32_t max_tokens) {
  return static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(n_heads) *
         static_cast<std::size_t>(kv_splits_of(max_tokens)) * sizeof(float2);
}

void attention_lse_cuda(const AttentionMassCuda& a, const KvTables& tables, std::int32_t layer, std::byte* scratch,
                        const CudaContext& context) {
  if (a.n_rows == 0) return;
  MassArgs args = args_of(a, tables, layer);
  args.partial = reinterpret_cast<float2*>(scratch);
  run<Kind::kLse>(args, context);
  launch(context, "merge_lse", lse_kernel, grid_of((a.n_rows * a.n_heads + kWarps - 1) / kWarps), kThreads, 0, args);
}

void add_moments_cuda(const float* row, std::int64_t n, float* sums, float* squares, float* entropy,
                      const CudaContext& context) {
  if (n == 0) return;
  launch(context, "add_moments", moments_kernel, dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)), kThreads,
         0, row, n, sums, squares, entropy);
}

}  // namespace mneme
