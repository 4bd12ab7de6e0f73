// Arithmetic of sinks, window and candidates over cache slots, for host and device: region_at() of region.h in the units
// of SelectionPlan.
#pragma once

#include "src/cuda/host_device.h"
#include "src/offload/device_cache_cuda.h"

namespace mneme {

// For lengths above the budget.
struct PageRegion {
  int first = 0, last = 0;  // candidates
  int n_select = 0;
  int window = 0;  // first unit of the window
  int stop = 0;    // one past the last unit
};

namespace slot_region {
MNEME_HOST_DEVICE int larger(int a, int b) {
  return a > b ? a : b;
}
MNEME_HOST_DEVICE int smaller(int a, int b) {
  return a < b ? a : b;
}
}  // namespace slot_region

MNEME_HOST_DEVICE int units_of(const SelectionPlan& r, int length) {
  return r.units.tokens == 1 ? length : (length + kKvPageTokens - 1) / kKvPageTokens;
}

MNEME_HOST_DEVICE PageRegion page_region(const SelectionPlan& r, int length) {
  using slot_region::larger, slot_region::smaller;
  PageRegion p;
  p.stop = units_of(r, length);
  int most = r.region.n_select;
  if (r.units.tokens != 1) {
    p.first = r.region.sink / kKvPageTokens;
    p.window = larger(p.first, p.stop - r.region.recent / kKvPageTokens);
  } else if (r.schedule == ScheduleKind::kNone) {  // whole entries leave the window
    p.first = r.region.sink;
    p.window = larger(
        p.first, (length - r.region.recent + r.units.entry_tokens - 1) / r.units.entry_tokens * r.units.entry_tokens);
  } else {  // tokens of the open entry are in the window
    const int wanted = (larger(length - r.region.recent, 0) + r.units.select_tokens - 1) / r.units.select_tokens *
                       r.units.select_tokens;
    p.first = r.region.sink;
    p.window = larger(p.first, smaller(wanted, (length - 1) / r.units.entry_tokens * r.units.entry_tokens));
    // Single tokens: what the budget leaves at this length. Units of several: as many at every length.
    if (r.units.select_tokens == 1) most = larger(0, r.region.budget - r.region.sink - (length - p.window));
  }
  p.last = p.window;
  p.n_select = r.schedule == ScheduleKind::kNone ? 0 : smaller(most, p.last - p.first);
  return p;
}

MNEME_HOST_DEVICE bool same_region(const SelectionPlan& r, int length, int other) {
  return units_of(r, length) == units_of(r, other);
}

// Cache slots of the window: its largest size over all lengths.
MNEME_HOST_DEVICE int window_slots(const SelectionPlan& r) {
  return r.units.tokens == 1 ? slot_region::larger(r.region.recent, r.units.entry_tokens)
                             : r.region.recent / kKvPageTokens;
}

}  // namespace mneme
