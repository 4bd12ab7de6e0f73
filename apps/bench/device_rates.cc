#include "apps/bench/device_rates.h"

#include "src/base/backend.h"
#include "src/base/error.h"
#include "src/cuda/device.h"

namespace mneme {

DeviceRates measure_device(int device) {
  const DeviceMeter* meter = Backend<DeviceMeter>::find();
  if (meter == nullptr || device_count() == 0) fail(ErrorKind::kDevice, "--device cuda: {}", no_device_reason());
  return meter->rates(device);
}

}  // namespace mneme
