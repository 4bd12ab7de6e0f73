// Backend of device.h, registered by a build with CUDA.
#pragma once

#include <string>

#include "src/cuda/device.h"

namespace mneme {

struct DeviceRuntime {
  int (*count)();                     // 0 also where there is no driver
  std::string (*no_device_reason)();  // called only where count() is 0
  DeviceInfo (*info)(int device);     // 0 <= device < count()
  void (*use)(int device);
};

}  // namespace mneme
