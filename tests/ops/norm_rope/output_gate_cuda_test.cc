#include "src/ops/norm_rope/output_gate_cuda.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/ops/norm_rope/output_gate.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/ops/gemm/gemm_testing.h"

namespace mneme {
namespace {

// A bf16 tensor's numbers in f32.
Tensor widened(const Tensor& from) {
  Tensor to(DType::kF32, {from.view().dim(0), from.view().dim(1)});
  for (std::int64_t i = 0; i < from.view().dim(0) * from.view().dim(1); ++i)
    to.as<float>()[i] = static_cast<float>(from.as<bf16>()[i]);
  return to;
}

class CudaOutputGate : public CudaTest {};

TEST_F(CudaOutputGate, IsThePlainForm) {
  for (const std::int64_t width : {4, 1028}) {
    const std::int64_t n = 3, total = n * width;
    const Tensor x = random_f32(n, width, 1), gate = random_f32(n, width, 2);
    gate.as<float>()[0] = -200.0f, gate.as<float>()[1] = 200.0f;
    const Tensor x16 = converted(x, DType::kBF16), gate16 = converted(gate, DType::kBF16);
    const Tensor want(DType::kF32, {n, width});
    for (const bool bf16_gate : {false, true}) {
      const Tensor x_read = widened(x16), gate_read = widened(gate16);
      sigmoid_gate_ref(x_read, bf16_gate ? gate_read : gate, want);
      const std::span<const bf16> rows(x16.as<bf16>(), static_cast<std::size_t>(total));
      const DeviceArray<bf16> in(rows), g16(std::span<const bf16>(gate16.as<bf16>(), rows.size())), out(rows.size());
      const DeviceArray<float> g32(std::span<const float>(gate.as<float>(), rows.size()));
      const void* g = bf16_gate ? static_cast<const void*>(g16.data()) : g32.data();
      sigmoid_gate_cuda(in.data(), g, bf16_gate, total, out.data(), {.stream = stream.get()});
      sigmoid_gate_cuda(in.data(), g, bf16_gate, total, in.data(), {.stream = stream.get()});
      const std::vector<bf16> apart = out.get(stream), in_place = in.get(stream);
      for (std::size_t i = 0; i < apart.size(); ++i) {
        EXPECT_EQ(in_place[i].bits, apart[i].bits);
        const double w = double{want.as<float>()[i]};
        EXPECT_LE(std::abs(static_cast<double>(static_cast<float>(apart[i])) - w), std::abs(w) * 0.0041 + 1e-30) << i;
      }
    }
  }
}

}  // namespace
}  // namespace mneme
