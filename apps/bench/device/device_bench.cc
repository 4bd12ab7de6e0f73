#include "apps/bench/device/device_bench.h"

#include "src/base/backend.h"
#include "src/base/error.h"

namespace mneme {

const DeviceBenches& device_benches() {
  const DeviceBenches* benches = Backend<DeviceBenches>::find();
  if (!benches || device_count() == 0) fail(ErrorKind::kDevice, "--device cuda: {}", no_device_reason());
  return *benches;
}

}  // namespace mneme
