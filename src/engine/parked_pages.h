// A preempted request's pages in a lower tier: stored as it loses them, returned when it goes on.
#pragma once

#include <cstdint>

#include "src/engine/lower_tier.h"
#include "src/engine/request.h"

namespace mneme {

// Before `r` loses its last page, or all pages where it can only lose all. Where what it has computed is not all in its
// pages and in the host's state of its method, nothing is stored.
void park(Request& r, LowerTier& lower);
// The pages in the tier are given up. Null: there are none.
void unpark(Request& r, LowerTier* lower);
// Returns how many tokens came back, after which `r` runs; 0: the lower tier has them no more.
//
// Requires  `r` is parked, and there is room for its pages.
std::int32_t bring_back(Request& r, LowerTier& lower);

}  // namespace mneme
