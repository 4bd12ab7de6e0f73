// Leaves out Highway's targets of unknown width. Included before Highway by files with arrays of vectors, which need a
// width known at compile time.
#pragma once

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
