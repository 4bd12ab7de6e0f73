#include "src/base/error.h"
#include "src/perf/cuda_bench.h"

namespace mneme {

struct CudaBench::Impl {};

CudaBench::CudaBench(std::unique_ptr<Model>, bool, DType, const BenchOptions&, std::int64_t, std::int32_t) {
  fail(ErrorKind::kDevice, "--device cuda: {}", no_device_reason());
}
CudaBench::~CudaBench() = default;
BenchResult CudaBench::decode(const BenchCase&) {
  return {};
}
BenchResult CudaBench::prefill(const BenchCase&) {
  return {};
}
CudaBench::GatherResult CudaBench::gather(const GatherCase&) {
  return {};
}
const DeviceInfo& CudaBench::device() const {
  fail(ErrorKind::kDevice, "{}", no_device_reason());
}
std::int64_t CudaBench::weight_bytes() const {
  return 0;
}
std::int64_t CudaBench::step_weight_bytes() const {
  return 0;
}
DType CudaBench::weights() const {
  return DType::kBF16;
}

}  // namespace mneme
