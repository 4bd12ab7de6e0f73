#include <nvtx3/nvToolsExt.h>

#include "src/cuda/trace_range.h"

namespace mneme {

TraceRange::TraceRange(const char* name) {
  nvtxRangePushA(name);
}
TraceRange::~TraceRange() {
  nvtxRangePop();
}

}  // namespace mneme
