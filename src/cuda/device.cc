#include "src/cuda/device.h"

#include "src/base/backend.h"
#include "src/base/error.h"
#include "src/cuda/device_runtime.h"

namespace mneme {
namespace {

const DeviceRuntime& expect_runtime(int device) {
  const DeviceRuntime* runtime = Backend<DeviceRuntime>::find();
  if (device_count() == 0) fail(ErrorKind::kDevice, "CUDA device {}: {}", device, no_device_reason());
  if (device < 0 || device >= device_count())
    fail(ErrorKind::kDevice, "CUDA device {}: there are {}, numbered from 0", device, device_count());
  return *runtime;
}

}  // namespace

int device_count() {
  const DeviceRuntime* runtime = Backend<DeviceRuntime>::find();
  return runtime ? runtime->count() : 0;
}

std::string no_device_reason() {
  const DeviceRuntime* runtime = Backend<DeviceRuntime>::find();
  if (!runtime) return "this build has no CUDA support (configure with -DMNEME_CUDA=ON, which needs nvcc)";
  return runtime->count() > 0 ? "" : runtime->no_device_reason();
}

DeviceInfo device_info(int device) {
  return expect_runtime(device).info(device);
}

void use_device(int device) {
  expect_runtime(device).use(device);
}

}  // namespace mneme
