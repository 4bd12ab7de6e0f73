// Units that are lists, as they come about on the device (UnitLists of kv_slots_cuda.h): tokens of a prompt by the
// clusters that kmeans_cuda found, tokens of an answer as segments. partition.h says which, and centroid.h what a mean
// is: sums in the order of the tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/kernels/kv_slots_cuda.h"

namespace mneme {

// Keys of tokens [first, first + n) of a sequence and layer, out of its pages: to [KV heads][n][D].
struct GatherKeys {
  std::int32_t key_slot = 0, key_layer = 0, first = 0, n = 0;
  std::byte* to = nullptr;
};
void gather_keys_cuda(const GatherKeys& c, const KvTables& keys, const CudaContext& context);

// Tokens [first, first + n) of a place and layer become units, a cluster each, in the order of the clusters; one
// without tokens becomes none. They follow those that are there.
//
//   keys     [KV heads][n][D], as gather_keys_cuda leaves them
//   cluster  [KV heads][n] u16, below n_clusters; null: every token for itself
//   scratch  append_clusters_scratch_bytes()
//
// Requires  1 <= n <= kMostKmeansTokens.
struct AppendClusters {
  std::int32_t place = 0, slot_layer = 0, sink = 0, first = 0, n = 0, n_clusters = 0;
  const std::byte* keys = nullptr;
  const std::uint16_t* cluster = nullptr;
  std::byte* scratch = nullptr;
};
std::size_t append_clusters_scratch_bytes(std::int32_t n_kv_heads, std::int32_t n_clusters);
void append_clusters_cuda(const AppendClusters& a, const KvSlots& slots, const CudaContext& context);

// Tokens [begin, end) of a place and layer become one unit.   key_slot, key_layer: of them in `keys`.
struct Segment {
  std::int32_t place = 0, slot_layer = 0, sink = 0, begin = 0, end = 0;
  std::int32_t key_slot = 0, key_layer = 0;
};
// Those of one (place, layer) stand together, in order.
void append_segments_cuda(std::span<const Segment> segments, const KvSlots& slots, const KvTables& keys,
                          const CudaContext& context);

// Units of a place and layer with tokens from `grouped` on are none any more. Requires  one begins there, or none is
// beyond; grouped >= sink.
void truncate_units_cuda(std::int32_t place, std::int32_t slot_layer, std::int32_t grouped, std::int32_t sink,
                         const KvSlots& slots, const CudaContext& context);

}  // namespace mneme
