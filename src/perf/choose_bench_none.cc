#include "src/base/error.h"
#include "src/device/device.h"
#include "src/perf/choose_bench.h"

namespace mneme {

ChooseResult measure_choose_cuda(const ModelConfig&, const ChooseCase&, std::int32_t) {
  fail(ErrorKind::kDevice, "--device cuda: {}", no_device_reason());
}

}  // namespace mneme
