// The room in a build without CUDA: no devices.
#include "src/base/error.h"
#include "src/device/device.h"

namespace mneme {

bool built_with_cuda() {
  return false;
}
int device_count() {
  return 0;
}
std::string no_device_reason() {
  return "this build has no CUDA support (configure with -DMNEME_CUDA=ON, which needs nvcc)";
}
DeviceInfo device_info(int device) {
  fail(ErrorKind::kDevice, "CUDA device {}: {}", device, no_device_reason());
}
void use_device(int device) {
  fail(ErrorKind::kDevice, "CUDA device {}: {}", device, no_device_reason());
}

}  // namespace mneme
