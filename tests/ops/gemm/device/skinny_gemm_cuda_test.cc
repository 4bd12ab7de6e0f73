#include "src/ops/gemm/device/skinny_gemm_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "src/ops/gemm/device/gemm_cublaslt_cuda.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/ops/gemm/gemm_testing.h"

namespace mneme {
namespace {

class CudaSkinnyGemmTest : public CudaTest {
 protected:
  CudaContext context() const { return {.stream = stream.get()}; }
};

// A matrix on the device, repacked from a checkpoint's layout.
struct OnDevice {
  DeviceArray<std::byte> memory;
  DeviceMatrix matrix;

  OnDevice(const Tensor& w, const CudaContext& context) : memory(0), matrix{} {
    const ConstTensorView view = w;
    matrix = {.values = nullptr, .scales = nullptr, .dtype = view.dtype(), .n_out = view.dim(0), .n_in = view.dim(1)};
    memory = DeviceArray<std::byte>(matrix.bytes());
    matrix.values = memory.data();
    const std::span<const std::byte> bytes(view.data(), static_cast<std::size_t>(view.dim(0)) * view.stride_bytes());
    if (view.dtype() == DType::kBF16) {
      memory.put(bytes);
      return;
    }
    matrix.scales = memory.data() + static_cast<std::size_t>(matrix.n_out) * matrix.value_bytes_per_row();
    staged = DeviceArray<std::byte>(bytes);
    repack_cuda(staged.data(), matrix, context);
  }
  DeviceArray<std::byte> staged{0};
};

std::vector<std::uint16_t> bits_of(const Tensor& bf16_rows, std::int64_t n) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(n));
  std::memcpy(bits.data(), bf16_rows.view().data(), bits.size() * 2);
  return bits;
}

// x w^T in f64, and for each output the error bound of f32 sums of exact products.
struct Expected {
  std::vector<double> y, slack;
};
Expected expected(const ConstTensorView& x, const ConstTensorView& w) {
  const std::int64_t m = x.dim(0), n = w.dim(0), k = x.dim(1);
  Expected e;
  std::vector<float> a(static_cast<std::size_t>(k)), b(static_cast<std::size_t>(k));
  for (std::int64_t i = 0; i < m; ++i) {
    dequantise_row(x, i, a.data());
    for (std::int64_t r = 0; r < n; ++r) {
      dequantise_row(w, r, b.data());
      double sum = 0, size = 0;
      for (std::size_t j = 0; j < a.size(); ++j) {
        const double p = static_cast<double>(a[j]) * static_cast<double>(b[j]);
        sum += p, size += std::abs(p);
      }
      e.y.push_back(sum), e.slack.push_back(size * 2e-6 + 1e-6);
    }
  }
  return e;
}

struct Size {
  std::int64_t n, k;
};

TEST_F(CudaSkinnyGemmTest, StoresWhatTheReferenceHas) {
  for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1})
    for (const auto& [n, k] :
         {Size{16, 32}, Size{1, 64}, Size{17, 96}, Size{100, 160}, Size{48, 2048}, Size{333, 4128}, Size{64, 18944}}) {
      const Tensor w = random_weights(type, n, k, 1);
      const OnDevice there(w, context());
      for (const std::int32_t m : {1, 2, 3, 5, 8}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(type) << " [" << n << ", " << k << "], " << m << " rows");
        const Tensor x = converted(random_f32(m, k, 7), DType::kBF16);
        const DeviceArray<std::uint16_t> x_device(bits_of(x, m * k));
        const DeviceArray<float> y(static_cast<std::size_t>(m * n));
        std::vector<float> bias(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) - 3;
        const DeviceArray<float> bias_device(bias);
        skinny_gemm_cuda(x_device.data(), m, there.matrix, {}, {.y = y.data(), .bias = bias_device.data()}, context());
        const Expected e = expected(x, w);
        const std::vector<float> got = y.get(stream);
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double want = e.y[i] + static_cast<double>(bias[i % bias.size()]);
          ASSERT_LE(std::abs(static_cast<double>(got[i]) - want), e.slack[i]) << i;
        }
      }
    }
}

// residual += x w^T; x_next and sums make the next skinny GEMM one of the normalised residual.
TEST_F(CudaSkinnyGemmTest, ResidualAndDeferredNormAreRmsNorm) {
  constexpr std::int64_t kHidden = 224, kIn = 320, kNext = 50;
  constexpr float kEps = 1e-5f;
  const Tensor w = random_weights(DType::kBF16, kHidden, kIn, 3),
               next = random_weights(DType::kBF16, kNext, kHidden, 4);
  const OnDevice w_device(w, context()), next_device(next, context());
  for (const std::int32_t m : {1, 4, 8}) {
    const Tensor x = converted(random_f32(m, kIn, 5), DType::kBF16), before = random_f32(m, kHidden, 6),
                 norm = random_f32(1, kHidden, 8);
    const DeviceArray<std::uint16_t> x_device(bits_of(x, m * kIn));
    const auto floats = [](const Tensor& t, std::int64_t n) {
      return std::vector<float>(t.as<float>(), t.as<float>() + n);
    };
    const DeviceArray<float> residual(floats(before, m * kHidden)), weight(floats(norm, kHidden));
    const DeviceArray<std::uint16_t> x_next(static_cast<std::size_t>(m * kHidden));
    const DeviceArray<float> sums(static_cast<std::size_t>(residual_parts(kHidden)) * 8);
    skinny_gemm_residual_cuda(
        x_device.data(), m, w_device.matrix,
        {.residual = residual.data(), .norm_weight = weight.data(), .x_next = x_next.data(), .sums = sums.data()},
        context());
    const DeviceArray<float> y(static_cast<std::size_t>(m) * kNext);
    const DeferredNorm deferred{.sums = sums.data(), .n_parts = residual_parts(kHidden), .n = kHidden, .eps = kEps};
    skinny_gemm_cuda(x_next.data(), m, next_device.matrix, deferred, {.y = y.data()}, context());

    const Expected e = expected(x, w);
    const std::vector<float> got = residual.get(stream), out = y.get(stream);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_LE(std::abs(static_cast<double>(got[i]) - e.y[i] - static_cast<double>(before.as<float>()[i])),
                e.slack[i]);
    for (std::int32_t row = 0; row < m; ++row) {
      double squares = 0;
      for (std::int64_t i = 0; i < kHidden; ++i) {
        const auto v = static_cast<double>(got[static_cast<std::size_t>(row * kHidden + i)]);
        squares += v * v;
      }
      const double scale = 1 / std::sqrt(squares / kHidden + static_cast<double>(kEps));
      for (std::int64_t r = 0; r < kNext; ++r) {
        double sum = 0, size = 0;
        for (std::int64_t i = 0; i < kHidden; ++i) {
          std::vector<float> b(kHidden);
          if (i == 0) dequantise_row(next, r, b.data());
          const double p = static_cast<double>(got[static_cast<std::size_t>(row * kHidden + i)]) * scale *
                           static_cast<double>(norm.as<float>()[i]) *
                           static_cast<double>(static_cast<float>(next.view().row_as<bf16>(r)[i]));
          sum += p, size += p * p;
        }
        // x_next is rounded to bf16: relative 2^-9 per term, independent.
        ASSERT_LE(std::abs(static_cast<double>(out[static_cast<std::size_t>(row * kNext + r)]) - sum),
                  std::sqrt(size) * 0.0039 * 3 + 1e-5);
      }
    }
  }
}

TEST_F(CudaSkinnyGemmTest, SwigluOfGateAndUp) {
  for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    constexpr std::int64_t kFfn = 77, kIn = 256;
    const Tensor w = random_weights(type, 2 * kFfn, kIn, 11);
    const OnDevice there(w, context());
    for (const std::int32_t m : {1, 8}) {
      const Tensor x = converted(random_f32(m, kIn, 12), DType::kBF16);
      const DeviceArray<std::uint16_t> x_device(bits_of(x, m * kIn)), out(static_cast<std::size_t>(m * kFfn));
      skinny_gemm_swiglu_cuda(x_device.data(), m, there.matrix, {}, out.data(), context());
      const Expected e = expected(x, w);
      const std::vector<std::uint16_t> got = out.get(stream);
      for (std::int64_t row = 0; row < m; ++row)
        for (std::int64_t i = 0; i < kFfn; ++i) {
          const double g = e.y[static_cast<std::size_t>(row * 2 * kFfn + i)];
          const double want = g / (1 + std::exp(-g)) * e.y[static_cast<std::size_t>(row * 2 * kFfn + kFfn + i)];
          bf16 v;
          v.bits = got[static_cast<std::size_t>(row * kFfn + i)];
          ASSERT_LE(std::abs(static_cast<double>(static_cast<float>(v)) - want), std::abs(want) * 0.0045 + 1e-3);
        }
    }
  }
}

TEST_F(CudaSkinnyGemmTest, DequantisesAsTheCheckpointsFormatSays) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    const Tensor w = random_weights(type, 9, 352, 2);
    const OnDevice there(w, context());
    const DeviceArray<std::uint16_t> out(4 * 352);
    dequantise_cuda(there.matrix, 3, 4, out.data(), context());
    const std::vector<std::uint16_t> got = out.get(stream);
    std::vector<float> row(352);
    for (std::int64_t r = 0; r < 4; ++r) {
      dequantise_row(w, 3 + r, row.data());
      for (std::size_t i = 0; i < row.size(); ++i)
        ASSERT_EQ(got[static_cast<std::size_t>(r) * 352 + i], bf16(row[i]).bits) << r << ", " << i;
    }
  }
}

TEST_F(CudaSkinnyGemmTest, ConvertsToBf16) {
  for (const DType type : {DType::kF32, DType::kF16}) {
    const Tensor w = random_weights(type, 3, 100, 2), want = converted(random_f32(3, 100, 2), DType::kBF16);
    const std::size_t bytes = 3 * row_bytes(type, 100);
    const DeviceArray<std::byte> from(std::span(const_cast<const std::byte*>(w.view().data()), bytes));
    const DeviceArray<std::uint16_t> out(300);
    to_bf16_cuda(from.data(), type, 300, out.data(), context());
    const std::vector<std::uint16_t> got = out.get(stream);
    std::vector<float> row(100);
    for (std::size_t i = 0; i < 300; ++i) {
      if (i % 100 == 0) dequantise_row(w, static_cast<std::int64_t>(i / 100), row.data());
      ASSERT_EQ(got[i], bf16(row[i % 100]).bits);
    }
  }
}

TEST_F(CudaSkinnyGemmTest, CublasLtGemmOfManyRows) {
  CublasLtGemm gemms;
  constexpr std::int64_t kN = 96, kK = 128;
  const Tensor w = random_weights(DType::kBF16, kN, kK, 21);
  const DeviceArray<std::uint16_t> w_device(bits_of(w, kN * kK));
  for (const std::int64_t m : {1, 9, 64, 130}) {
    const Tensor x = converted(random_f32(m, kK, 22), DType::kBF16);
    const DeviceArray<std::uint16_t> x_device(bits_of(x, m * kK)), narrow(static_cast<std::size_t>(m * kN));
    const DeviceArray<float> y(static_cast<std::size_t>(m * kN));
    const Expected e = expected(x, w);
    gemms.run({.m = m, .n = kN, .k = kK, .f32 = true}, x_device.data(), w_device.data(), y.data(), context());
    gemms.run({.m = m, .n = kN, .k = kK, .f32 = true, .accumulate = true}, x_device.data(), w_device.data(), y.data(),
              context());
    gemms.run({.m = m, .n = kN, .k = kK}, x_device.data(), w_device.data(), narrow.data(), context());
    const std::vector<float> got = y.get(stream);
    const std::vector<std::uint16_t> got_narrow = narrow.get(stream);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(std::abs(static_cast<double>(got[i]) - 2 * e.y[i]), 3 * e.slack[i]);
      bf16 v;
      v.bits = got_narrow[i];
      ASSERT_LE(std::abs(static_cast<double>(static_cast<float>(v)) - e.y[i]), std::abs(e.y[i]) * 0.0040 + e.slack[i]);
    }
  }
}

}  // namespace
}  // namespace mneme
