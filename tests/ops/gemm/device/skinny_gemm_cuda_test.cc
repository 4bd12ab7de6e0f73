#include "src/ops/gemm/device/skinny_gemm_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "src/ops/gemm/device/gemm_cublaslt_cuda.h"
#include "src/ops/gemm/device/weight_layout_cuda.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/ops/gemm/gemm_testing.h"

namespace mneme {
namespace {

class CudaSkinnyGemmTest : public CudaTest {
 protected:
  static constexpr std::int64_t kWidest = 4352;  // columns of x
  CudaContext context() const { return {.stream = stream.get()}; }
  SkinnyWorkspace workspace(int splits = 0) {
    if (!partial_) {
      partial_.emplace(skinny_partial_bytes() / sizeof(float)), arrived_.emplace(kSkinnyUnits, 0);
      permuted_.emplace(skinny_permuted_bytes(kWidest), 0);
    }
    return {.partial = partial_->data(), .arrived = arrived_->data(), .splits = splits, .permuted = permuted_->data()};
  }

 private:
  std::optional<DeviceArray<float>> partial_;
  std::optional<DeviceArray<std::int32_t>> arrived_;
  std::optional<DeviceArray<std::byte>> permuted_;
};

// A matrix on the device, repacked from a checkpoint's layout.
struct OnDevice {
  DeviceArray<std::byte> memory{0}, staged{0};
  DeviceMatrix matrix;

  OnDevice(const Tensor& w, const CudaContext& context) {
    const ConstTensorView view = w;
    matrix = {.values = nullptr, .dtype = view.dtype(), .n_out = view.dim(0), .n_in = view.dim(1)};
    const std::span<const std::byte> bytes(view.data(), static_cast<std::size_t>(view.dim(0)) * view.stride_bytes());
    memory = DeviceArray<std::byte>(matrix.bytes(), 0);
    matrix.values = memory.data();
    if (view.dtype() == DType::kBF16) {
      memory.put(bytes);
      return;
    }
    staged = DeviceArray<std::byte>(bytes);
    repack_cuda(staged.data(), 0, view.dim(0), matrix, context);
  }
};

std::vector<std::uint16_t> bits_of(const Tensor& bf16_rows, std::int64_t n) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(n));
  std::memcpy(bits.data(), bf16_rows.view().data(), bits.size() * 2);
  return bits;
}

// x w^T in f64, and for each output the error bound of f32 sums of exact products, of codes with an offset too.
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
      double sum = 0, size = 0, most = 0, x_size = 0;
      for (std::size_t j = 0; j < a.size(); ++j) {
        const double p = static_cast<double>(a[j]) * static_cast<double>(b[j]);
        sum += p, size += std::abs(p);
        most = std::max(most, std::abs(static_cast<double>(b[j]))), x_size += std::abs(static_cast<double>(a[j]));
      }
      e.y.push_back(sum), e.slack.push_back((size + most * x_size) * 2e-6 + 1e-6);
    }
  }
  return e;
}

struct TypeAndRows {
  DType type;
  std::int32_t m;
};
struct Size {
  std::int64_t n, k;
};

std::vector<DType> device_types() {
  std::vector<DType> types = {DType::kBF16};
  types.insert(types.end(), std::begin(kQuantisedTypes), std::end(kQuantisedTypes));
  return types;
}

// Rows of x in other numbers than tiles of 8, rows of w in other numbers than octets, rows that end within a slab.
TEST_F(CudaSkinnyGemmTest, StoresWhatTheReferenceHas) {
  constexpr std::int32_t kMost = kSkinnyRows;
  for (const DType type : device_types())
    for (const auto& [n, k] :
         {Size{16, 32}, Size{1, 64}, Size{17, 96}, Size{101, 160}, Size{67, 2048}, Size{48, 4128}, Size{300, 224}}) {
      const std::int64_t columns = whole_blocks(type, k);
      const Tensor w = random_weights(type, n, columns, 1);
      const OnDevice there(w, context());
      const Tensor x = converted(random_f32(kMost, columns, 7), DType::kBF16);
      const DeviceArray<std::uint16_t> x_device(bits_of(x, kMost * columns));
      const Expected e = expected(x, w);
      std::vector<float> bias(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) - 3;
      const DeviceArray<float> bias_device(bias);
      for (const std::int32_t m : {1, 2, 3, 8, 9, 16, 17, 24, 25, 31, 32, 33, 57, 64}) {
        if (!skinny_gemm_takes(type, m)) continue;
        for (const int splits : {0, 3}) {
          if (splits > (columns + 511) / 512) continue;
          SCOPED_TRACE(::testing::Message() << dtype_name(type) << " [" << n << ", " << columns << "], " << m
                                            << " rows, " << splits << " parts");
          const DeviceArray<float> y(static_cast<std::size_t>(m * n));
          skinny_gemm_cuda(x_device.data(), m, there.matrix, {}, {.y = y.data(), .bias = bias_device.data()},
                           workspace(splits), context());
          const std::vector<float> got = y.get(stream);
          for (std::size_t i = 0; i < got.size(); ++i) {
            const double want = e.y[i] + static_cast<double>(bias[i % bias.size()]);
            ASSERT_LE(std::abs(static_cast<double>(got[i]) - want), e.slack[i]) << i;
          }
        }
      }
    }
}

// y += x w^T into the middle of wider rows, and y in bf16.
TEST_F(CudaSkinnyGemmTest, StoresBesideOtherColumns) {
  constexpr std::int64_t kN = 40, kK = 256, kStride = 100, kFirst = 30;
  for (const DType type : {DType::kQ8_0, DType::kQ4_K, DType::kQ6_K})
    for (const std::int32_t m : {1, 20, 64}) {
      const Tensor w = random_weights(type, kN, kK, 3), x = converted(random_f32(m, kK, 4), DType::kBF16);
      const OnDevice there(w, context());
      const DeviceArray<std::uint16_t> x_device(bits_of(x, m * kK)),
          narrow(std::vector<std::uint16_t>(static_cast<std::size_t>(m * kStride), 0x4000));
      const DeviceArray<float> y(std::vector<float>(static_cast<std::size_t>(m * kStride), 2.0f));
      skinny_gemm_cuda(x_device.data(), m, there.matrix, {},
                       {.y = y.data() + kFirst, .stride = kStride, .accumulate = true}, workspace(), context());
      skinny_gemm_cuda(x_device.data(), m, there.matrix, {},
                       {.y = narrow.data() + kFirst, .stride = kStride, .bf16 = true}, workspace(), context());
      const Expected e = expected(x, w);
      const std::vector<float> got = y.get(stream);
      const std::vector<std::uint16_t> got_narrow = narrow.get(stream);
      for (std::int64_t i = 0; i < m * kStride; ++i) {
        const std::int64_t column = i % kStride - kFirst;
        const auto at = static_cast<std::size_t>(i);
        bf16 v;
        v.bits = got_narrow[at];
        if (column < 0 || column >= kN) {
          ASSERT_EQ(got[at], 2.0f);
          ASSERT_EQ(v.bits, 0x4000);
          continue;
        }
        const auto from = static_cast<std::size_t>(i / kStride * kN + column);
        ASSERT_LE(std::abs(static_cast<double>(got[at]) - 2 - e.y[from]), e.slack[from] + 1e-6);
        ASSERT_LE(std::abs(static_cast<double>(static_cast<float>(v)) - e.y[from]),
                  std::abs(e.y[from]) * 0.0040 + e.slack[from]);
      }
    }
}

// residual += x w^T; x_next and sums make the next skinny GEMM one of the normalised residual.
TEST_F(CudaSkinnyGemmTest, ResidualAndDeferredNormAreRmsNorm) {
  constexpr std::int64_t kHidden = 224, kIn = 320, kNext = 50;
  constexpr float kEps = 1e-5f;
  for (const auto& [type, m] : {TypeAndRows{DType::kBF16, 1},
                                {DType::kBF16, 4},
                                {DType::kBF16, 8},
                                {DType::kBF16, 12},
                                {DType::kBF16, 17},
                                {DType::kBF16, 32},
                                {DType::kQ8_0, 1},
                                {DType::kQ8_0, 15},
                                {DType::kQ5_1, 64}}) {
    SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << m << " rows");
    if (!skinny_gemm_takes(type, m)) continue;  // bf16 from 17 rows on, before Hopper
    const DType next_type = skinny_gemm_takes(DType::kBF16, m) ? DType::kBF16 : DType::kQ8_0;
    const Tensor w = random_weights(type, kHidden, kIn, 3), next = random_weights(next_type, kNext, kHidden, 4);
    const OnDevice w_device(w, context()), next_device(next, context());
    const Tensor x = converted(random_f32(m, kIn, 5), DType::kBF16), before = random_f32(m, kHidden, 6),
                 norm = random_f32(1, kHidden, 8);
    const DeviceArray<std::uint16_t> x_device(bits_of(x, m * kIn));
    const auto floats = [](const Tensor& t, std::int64_t n) {
      return std::vector<float>(t.as<float>(), t.as<float>() + n);
    };
    const DeviceArray<float> residual(floats(before, m * kHidden)), weight(floats(norm, kHidden));
    const DeviceArray<std::uint16_t> x_next(static_cast<std::size_t>(m * kHidden));
    const DeviceArray<float> sums(static_cast<std::size_t>(residual_parts(kHidden, m)) * kSkinnyRows);
    skinny_gemm_residual_cuda(
        x_device.data(), m, w_device.matrix,
        {.residual = residual.data(), .norm_weight = weight.data(), .x_next = x_next.data(), .sums = sums.data()},
        workspace(), context());
    const DeviceArray<float> y(static_cast<std::size_t>(m) * kNext);
    const DeferredNorm deferred{.sums = sums.data(), .n_parts = residual_parts(kHidden, m), .n = kHidden, .eps = kEps};
    skinny_gemm_cuda(x_next.data(), m, next_device.matrix, deferred, {.y = y.data()}, workspace(), context());

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
        std::vector<float> b(kHidden);
        dequantise_row(next, r, b.data());
        for (std::int64_t i = 0; i < kHidden; ++i) {
          const double p = static_cast<double>(got[static_cast<std::size_t>(row * kHidden + i)]) * scale *
                           static_cast<double>(norm.as<float>()[i]) *
                           static_cast<double>(b[static_cast<std::size_t>(i)]);
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
  for (const DType type : device_types()) {
    constexpr std::int64_t kFfn = 72, kIn = 256;
    const Tensor w = random_weights(type, 2 * kFfn, kIn, 11);
    const OnDevice there(w, context());
    for (const std::int32_t m : {1, 8, 11, 20, 30, 64}) {
      if (!skinny_gemm_takes(type, m)) continue;
      const Tensor x = converted(random_f32(m, kIn, 12), DType::kBF16);
      const DeviceArray<std::uint16_t> x_device(bits_of(x, m * kIn)), out(static_cast<std::size_t>(m * kFfn));
      skinny_gemm_swiglu_cuda(x_device.data(), m, there.matrix, {}, out.data(), workspace(), context());
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

// Rows repacked in two calls, as parts of a fused matrix are. Every value is the CPU's: bit for bit in f32, rounded once in
// bf16.
TEST_F(CudaSkinnyGemmTest, DequantisesAsTheCheckpointsFormatSays) {
  for (const DType type : kQuantisedTypes) {
    SCOPED_TRACE(dtype_name(type));
    constexpr std::int64_t kRows = 21, kFirst = 5;
    const std::int64_t k = whole_blocks(type, 416);
    const Tensor w = random_weights(type, kRows, k, 2);
    DeviceMatrix m{.values = nullptr, .dtype = type, .n_out = kRows, .n_in = k};
    const DeviceArray<std::byte> memory(m.bytes(), 0);
    m.values = memory.data();
    const std::size_t row_size = row_bytes(type, k);
    const DeviceArray<std::byte> staged(std::span(const_cast<const std::byte*>(w.view().data()), kRows * row_size));
    repack_cuda(staged.data(), 0, kFirst, m, context());
    repack_cuda(staged.data() + kFirst * row_size, kFirst, kRows - kFirst, m, context());

    const DeviceArray<std::uint16_t> out(static_cast<std::size_t>(11 * k));
    dequantise_cuda(m, 8, 11, out.data(), context());
    const DeviceArray<std::int32_t> ids(std::vector<std::int32_t>{20, 0, 7, 13});
    const DeviceArray<float> rows(static_cast<std::size_t>(4 * k));
    read_rows_cuda(m, ids.data(), 4, rows.data(), context());
    const std::vector<std::uint16_t> got = out.get(stream);
    const std::vector<float> got_rows = rows.get(stream);
    std::vector<float> row(static_cast<std::size_t>(k));
    for (std::size_t r = 0; r < 11; ++r) {
      dequantise_row(w, static_cast<std::int64_t>(8 + r), row.data());
      for (std::size_t i = 0; i < row.size(); ++i)
        ASSERT_EQ(got[r * row.size() + i], bf16(row[i]).bits) << 8 + r << ", " << i;
    }
    for (std::size_t r = 0; r < 4; ++r) {
      dequantise_row(w, std::array{20, 0, 7, 13}[r], row.data());
      for (std::size_t i = 0; i < row.size(); ++i)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got_rows[r * row.size() + i]), std::bit_cast<std::uint32_t>(row[i]))
            << r << ", " << i;
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
