#include "src/base/error.h"
#include "src/device/device.h"
#include "src/perf/attention_bench.h"

namespace mneme {

AttentionResult measure_attention_cuda(const ModelConfig&, std::int32_t, std::int32_t) {
  fail(ErrorKind::kDevice, "--device cuda: {}", no_device_reason());
}

}  // namespace mneme
