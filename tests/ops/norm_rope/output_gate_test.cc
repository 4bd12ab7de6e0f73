#include "src/ops/norm_rope/output_gate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/gemm/gemm_testing.h"
#include "tests/ops/simd/each_target.h"

namespace mneme {
namespace {

TEST(SigmoidGate, FitsTheReferenceOnEveryInstructionSet) {
  ThreadPool pool(3);
  each_target([&] {
    for (const DType type : {DType::kF32, DType::kBF16})
      for (const auto& [n, width] : {std::pair{0, 8}, {1, 1}, {1, 7}, {3, 64}, {5, 67}, {1, 4096}, {40, 512}}) {
        SCOPED_TRACE(fmt::format("n {} width {} {}", n, width, dtype_name(type)));
        const Tensor x = random_f32(std::max(n, 1), width, 1), gate = random_f32(std::max(n, 1), width, 2);
        Tensor got(type, {n, width}), expected(type, {n, width});
        const ConstTensorView rows = ConstTensorView(x).rows(0, n), gates = ConstTensorView(gate).rows(0, n);
        sigmoid_gate_ref(rows, gates, expected);
        sigmoid_gate_cpu(rows, gates, got, {.pool = &pool});
        for (std::int64_t i = 0; i < std::int64_t{n} * width; ++i) {
          const bool half = type == DType::kBF16;
          const float e = half ? static_cast<float>(expected.as<bf16>()[i]) : expected.as<float>()[i];
          const float g = half ? static_cast<float>(got.as<bf16>()[i]) : got.as<float>()[i];
          ASSERT_LE(std::abs(e - g), (half ? 0x1p-7f : 4e-6f) * std::abs(e) + 1e-37f) << "value " << i;
        }
      }
  });
}

TEST(SigmoidGate, OfLargeGatesIsZeroOrTheValueItself) {
  ThreadPool pool(1);
  const Tensor x = random_f32(1, 20, 1);
  Tensor gate(DType::kF32, {1, 20}), y(DType::kF32, {1, 20});
  for (int i = 0; i < 20; ++i) gate.as<float>()[i] = i % 2 == 0 ? 1e4f : -1e4f;
  sigmoid_gate_cpu(x, gate, y, {.pool = &pool});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(y.as<float>()[i], i % 2 == 0 ? x.as<float>()[i] : 0.0f) << i;
}

}  // namespace
}  // namespace mneme
