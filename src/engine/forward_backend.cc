#include "src/engine/forward_backend.h"

#include "src/base/error.h"

namespace mneme {

void check_device_options(const EngineOptions& options) {
  if (options.device != Device::kCuda) return;
  if (options.speculation.on())
    fail(
        ErrorKind::kOption,
        "speculative {}: expected --device cpu, found cuda: its attention would read the KV cache once for each draft; "
        "leave it out",
        speculation_text(options.speculation));
  if (!options.deterministic) return;
  fail(ErrorKind::kOption,
       "--deterministic: expected --device cpu, found cuda: GPU kernels pick tiles by the shape of the batch, so that "
       "answers may round differently beside others; leave it out");
}

}  // namespace mneme
