#include "src/kernels/pointwise.h"

namespace mneme {

void embed_cpu(std::span<const std::int32_t> ids, const ConstTensorView& table, const TensorView& out,
               const CpuContext&) {
  embed_ref(ids, table, out);
}

void rms_norm_cpu(const ConstTensorView& x, const float* weight, double eps, const TensorView& out, const CpuContext&) {
  rms_norm_ref(x, weight, eps, out);
}

void swiglu_cpu(const ConstTensorView& gate, const ConstTensorView& up, const TensorView& out, const CpuContext&) {
  swiglu_ref(gate, up, out);
}

}  // namespace mneme
