// Page summaries on the device: frames and entries of centroids.h, sketch.h and moments.h, in their layouts.
//
// Numerics  as those headers state; sums in another order than the CPU's, so that a key halfway between two centroids, or
//           a value halfway between two codes, may fall to the other one.
// Async     all functions enqueue.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/offload/device_cache_cuda.h"

namespace mneme {

// Most tokens of a page that one thread block clusters: keys and their Gram matrix are in its shared memory.
inline constexpr std::int32_t kDeviceSummaryTokens = 64;

// Fits the frames of a sequence's KV heads to its first `pages` pages, as SummaryIndex::fit() does. Entries that were
// built in the frames before are invalid afterwards.
//   scratch  fit_frames_scratch_bytes()
struct FitFrames {
  IndexedLayer of;
  std::int32_t pages = 0;
  std::byte* scratch = nullptr;
};
std::size_t fit_frames_scratch_bytes(const DeviceCache& cache);
void fit_frames_cuda(const FitFrames& f, const DeviceCache& cache, const KvTables& keys, const CudaContext& context);

// Builds UnitEntries.
void build_summaries_cuda(const BuildEntries& b, const DeviceCache& cache, const KvTables& keys,
                          const CudaContext& context);
// Builds the entries that the rows' newest tokens complete, as close_unit_entries_cuda() does.
void close_summaries_cuda(const CloseEntries& c, const DeviceCache& cache, const KvTables& pages,
                          const CudaContext& context);

}  // namespace mneme
