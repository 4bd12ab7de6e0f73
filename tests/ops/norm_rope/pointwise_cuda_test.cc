#include "src/ops/norm_rope/pointwise_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "src/ops/attention/attention.h"
#include "src/ops/gemm/device/weight_layout_cuda.h"
#include "src/ops/norm_rope/pointwise.h"
#include "src/ops/norm_rope/rope.h"
#include "tests/cuda/bits_testing.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/ops/gemm/gemm_testing.h"

namespace mneme {
namespace {

class CudaPointwiseTest : public CudaTest {
 protected:
  CudaContext context() const { return {.stream = stream.get()}; }
};

TEST_F(CudaPointwiseTest, EmbedsRowsOfEveryType) {
  constexpr std::int64_t kVocab = 11, kHidden = 256;
  const std::vector<std::int32_t> ids = {10, 0, 3, 3};
  for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ6_K}) {
    const Tensor table = random_weights(type, kVocab, kHidden, 1), want(DType::kF32, {4, kHidden});
    embed_ref(ids, table, want);
    const std::size_t bytes = kVocab * row_bytes(type, kHidden);
    const DeviceArray<std::byte> blocks(std::span(const_cast<const std::byte*>(table.view().data()), bytes));
    DeviceMatrix m{.values = blocks.data(), .dtype = type, .n_out = kVocab, .n_in = kHidden};
    const DeviceArray<std::byte> memory(m.bytes(), 0);
    if (type != DType::kBF16) {
      m.values = memory.data();
      repack_cuda(blocks.data(), 0, kVocab, m, context());
    }
    const DeviceArray<std::int32_t> ids_device(ids);
    const Tensor weight = random_f32(1, kHidden, 9);
    const DeviceArray<float> out(4 * kHidden), sums(kSkinnyRows), weight_device(floats_of(weight, kHidden));
    const DeviceArray<std::uint16_t> next(4 * kHidden);
    embed_cuda(
        ids_device.data(), 4, m,
        {.residual = out.data(), .norm_weight = weight_device.data(), .x_next = next.data(), .sums = sums.data()},
        context());
    const std::vector<float> got = out.get(stream), squares = sums.get(stream);
    const std::vector<std::uint16_t> got_next = next.get(stream);
    for (std::int64_t i = 0; i < 4; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < kHidden; ++j) {
        const float w = want.view().row_as<float>(i)[j];
        const auto at = static_cast<std::size_t>(i * kHidden + j);
        ASSERT_EQ(got[at], w) << dtype_name(type) << " " << i << ", " << j;
        ASSERT_EQ(got_next[at], bf16(w * weight.as<float>()[j]).bits);
        sum += static_cast<double>(w) * static_cast<double>(w);
      }
      ASSERT_LE(std::abs(static_cast<double>(squares[static_cast<std::size_t>(i)]) - sum), sum * 1e-5);
    }
  }
}

TEST_F(CudaPointwiseTest, NormsRowsAndPickedRows) {
  for (const std::int64_t h : {4, 64, 1028, 5120}) {
    const Tensor x = random_f32(5, h, 2), weight = random_f32(1, h, 3), want(DType::kF32, {5, h});
    rms_norm_ref(x, weight.as<float>(), 1e-5, want);
    const DeviceArray<float> x_device(floats_of(x, 5 * h)), w_device(floats_of(weight, h));
    for (const std::vector<std::int32_t>& rows : {std::vector<std::int32_t>{0, 1, 2, 3, 4}, {4, 0, 4}}) {
      const DeviceArray<std::int32_t> rows_device(rows);
      const DeviceArray<std::uint16_t> out(rows.size() * static_cast<std::size_t>(h));
      rms_norm_cuda(x_device.data(), rows.size() == 5 ? nullptr : rows_device.data(), static_cast<int>(rows.size()),
                    static_cast<int>(h), w_device.data(), 1e-5f, out.data(), context());
      const std::vector<std::uint16_t> got = out.get(stream);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const auto row = rows[i / static_cast<std::size_t>(h)];
        const auto w = static_cast<double>(want.view().row_as<float>(row)[i % static_cast<std::size_t>(h)]);
        ASSERT_LE(std::abs(value(got[i]) - w), std::abs(w) * 0.0040 + 1e-6);
      }
    }
  }
}

// An operation on [n, 2 ffn] beside f64.
void check_gated(const Stream& stream, void (*run)(const void*, std::int32_t, std::int32_t, void*, const CudaContext&),
                 double (*gate)(double)) {
  constexpr std::int64_t kRows = 3, kFfn = 264;
  const Tensor random = random_f32(kRows, 2 * kFfn, 5);
  for (std::int64_t i = 0; i < kRows * 2 * kFfn; ++i) random.as<float>()[i] *= 3.0f;
  const Tensor both = converted(random, DType::kBF16);
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(kRows * 2 * kFfn));
  std::memcpy(bits.data(), both.view().data(), bits.size() * 2);
  const DeviceArray<std::uint16_t> from(bits), out(static_cast<std::size_t>(kRows * kFfn));
  run(from.data(), kRows, kFfn, out.data(), {.stream = stream.get()});
  const std::vector<std::uint16_t> got = out.get(stream);
  for (std::int64_t i = 0; i < kRows * kFfn; ++i) {
    const std::int64_t row = i / kFfn, j = i % kFfn;
    const double g = value(bits[static_cast<std::size_t>(row * 2 * kFfn + j)]);
    const double want = gate(g) * value(bits[static_cast<std::size_t>(row * 2 * kFfn + kFfn + j)]);
    ASSERT_LE(std::abs(value(got[static_cast<std::size_t>(i)]) - want), std::abs(want) * 0.0042 + 1e-6);
  }
}

TEST_F(CudaPointwiseTest, Swiglu) {
  check_gated(stream, swiglu_cuda, [](double g) { return g / (1 + std::exp(-g)); });
}

TEST_F(CudaPointwiseTest, Geglu) {
  check_gated(stream, geglu_cuda, [](double g) {
    return g / (1 + std::exp(-2 * std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g)));
  });
}

TEST_F(CudaPointwiseTest, ArgmaxTakesTheFirstOfTheLargestAndNoNaN) {
  constexpr std::int32_t kVocab = 5003;
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::vector<float>> rows(6, std::vector<float>(kVocab));
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t i = 0; i < kVocab; ++i) rows[r][i] = static_cast<float>((i * 7919 + r * 13) % 1000) * 0.01f;
  rows[1][4000] = rows[1][77] = 50;       // a tie: the smaller
  rows[2][5] = kNaN, rows[2][5002] = 60;  // NaN is ignored
  rows[3].assign(kVocab, -kInf);          // no possible token
  rows[4].assign(kVocab, kNaN);
  rows[5][9] = rows[5][8] = kInf;  // only these are possible
  std::vector<float> all;
  for (const auto& r : rows) all.insert(all.end(), r.begin(), r.end());
  const DeviceArray<float> logits(all), logprob(6);
  const DeviceArray<std::int32_t> token(6);
  argmax_cuda(logits.data(), 6, kVocab, token.data(), logprob.data(), context());
  const std::vector<std::int32_t> got = token.get(stream);
  const std::vector<float> got_logprob = logprob.get(stream);
  double sum = 0;
  for (const float v : rows[1]) sum += std::exp(static_cast<double>(v) - 50);
  EXPECT_EQ(got[0], static_cast<std::int32_t>(std::max_element(rows[0].begin(), rows[0].end()) - rows[0].begin()));
  EXPECT_EQ(got[1], 77);
  EXPECT_LE(std::abs(static_cast<double>(got_logprob[1]) + std::log(sum)), 1e-5);
  EXPECT_EQ(got[2], 5002);
  EXPECT_EQ(got[3], 0);
  EXPECT_EQ(got_logprob[3], -kInf);
  EXPECT_EQ(got[4], 0);
  EXPECT_EQ(got[5], 8);
  EXPECT_LE(std::abs(static_cast<double>(got_logprob[5]) + std::log(2.0)), 1e-5);
}

}  // namespace
}  // namespace mneme
