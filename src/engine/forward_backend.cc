#include "src/engine/forward_backend.h"

#include "src/base/error.h"

namespace mneme {

void check_device_options(const EngineOptions& options) {
  if (options.device != Device::kCuda || !options.deterministic) return;
  fail(ErrorKind::kOption,
       "--deterministic: expected --device cpu, found cuda: GPU kernels pick tiles by the shape of the batch, so that "
       "answers may round differently beside others; leave it out");
}

}  // namespace mneme
