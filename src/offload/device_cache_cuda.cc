#include "src/offload/device_cache_cuda.h"

#include "src/base/error.h"

namespace mneme {

void expect_slots_cuda(const DeviceCache& cache) {
  if (cache.head_dim % 16 != 0 || cache.head_dim > kMaxSlotHeadDim)
    fail(ErrorKind::kUnsupported, "head_dim {}: methods that select run on the device with multiples of 16 up to {}",
         cache.head_dim, kMaxSlotHeadDim);
  if (cache.max_pages > kMaxKvPages)
    fail(ErrorKind::kUnsupported, "a context of {} tokens: pages are selected on the device of up to {}",
         std::int64_t{cache.max_pages} * kKvPageTokens, std::int64_t{kMaxKvPages} * kKvPageTokens);
  if (cache.index.lists.max_units > kMaxUnitLists)
    fail(ErrorKind::kUnsupported,
         "a context of {} tokens may have {} clusters and segments: the device selects among up to {} (larger ones: "
         "--kv unit=cluster:N,segment=MIN-MAX)",
         std::int64_t{cache.max_pages} * kKvPageTokens, cache.index.lists.max_units, kMaxUnitLists);
  if (cache.n_slots > kMaxKvSlots)
    fail(ErrorKind::kUnsupported, "a budget that takes {} slots a KV head: the device has up to {}{}", cache.n_slots,
         kMaxKvSlots, cache.unit_tokens == 1 ? " (tokens that stay on the device, --kv-store device, take none)" : "");
}

}  // namespace mneme
