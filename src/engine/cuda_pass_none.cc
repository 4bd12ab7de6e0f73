#include "src/base/error.h"
#include "src/device/device.h"
#include "src/engine/cuda_pass.h"

namespace mneme {

std::unique_ptr<ForwardPass> cuda_pass(std::unique_ptr<Model>, const EngineOptions&) {
  fail(ErrorKind::kDevice, "--device cuda: {}", no_device_reason());
}

}  // namespace mneme
