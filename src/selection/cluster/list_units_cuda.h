// Builds units that are lists of tokens (UnitLists of device_cache_cuda.h) on the device: prompt tokens by the clusters of
// kmeans_cuda, generated tokens as segments. partition.h and centroid.h are the specifications; means are summed in the
// order of the tokens. Async: all functions enqueue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/offload/device_cache_cuda.h"

namespace mneme {

// Gathers keys of tokens [first, first + n) of a sequence and layer from its pages into [KV heads][n][D].
struct GatherKeys {
  IndexedLayer of;
  std::int32_t first = 0, n = 0;
  std::byte* to = nullptr;
};
void gather_keys_cuda(const GatherKeys& c, const KvTables& keys, const CudaContext& context);

// Appends tokens [first, first + n) of a sequence slot and layer as units, one per nonempty cluster, in order of the
// clusters.
//
//   keys     [KV heads][n][list_dim(D)], from gather_keys_cuda
//   cluster  [KV heads][n] u16, below n_clusters; null: one unit per token
//   scratch  append_clusters_scratch_bytes()
//
// Requires  1 <= n <= kMaxKmeansTokens.
struct AppendClusters {
  IndexedLayer of;
  std::int32_t sink = 0, first = 0, n = 0, n_clusters = 0;
  const std::byte* keys = nullptr;
  const std::uint16_t* cluster = nullptr;
  std::byte* scratch = nullptr;
};
std::size_t append_clusters_scratch_bytes(std::int32_t n_kv_heads, std::int32_t n_clusters);
void append_clusters_cuda(const AppendClusters& a, const DeviceCache& cache, const CudaContext& context);

// Tokens [begin, end) of a sequence slot and layer that become one unit.
struct Segment {
  IndexedLayer of;
  std::int32_t sink = 0, begin = 0, end = 0;
};
// Appends segments. Requires  those of one (sequence slot, layer) are adjacent and in order.
void append_segments_cuda(std::span<const Segment> segments, const DeviceCache& cache, const KvTables& keys,
                          const CudaContext& context);

// Removes the units of a sequence slot and layer with tokens from `grouped` on. Requires  a unit starts at `grouped`,
// or none extends beyond it; grouped >= sink.
void truncate_units_cuda(const IndexedLayer& of, std::int32_t grouped, std::int32_t sink, const DeviceCache& cache,
                         const CudaContext& context);

}  // namespace mneme
