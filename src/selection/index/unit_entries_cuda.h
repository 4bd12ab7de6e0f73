// Builds entries (UnitEntries) on the device: boxes, 1-bit keys and centroids of any number of tokens and any head size.
// box.h, one_bit.h and centroid.h are the specifications; layouts are theirs, byte for byte, but for 1-bit keys that a
// scan reads (UnitIndexes::keys): the same values in another order.
//
// Numerics  as one_bit_build_cpu and centroid_build_cpu state; boxes are exact.
// Async     both functions enqueue.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/offload/device_cache_cuda.h"

namespace mneme {

void build_unit_entries_cuda(const BuildEntries& b, const DeviceCache& cache, const KvTables& keys,
                             const CudaContext& context);

void close_unit_entries_cuda(const CloseEntries& c, const DeviceCache& cache, const KvTables& pages,
                             const CudaContext& context);

}  // namespace mneme
