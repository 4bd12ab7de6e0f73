#include "src/ops/norm_rope/pointwise_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "src/ops/attention/attention.h"
#include "src/ops/gemm/device/weight_layout_cuda.h"
#include "src/ops/norm_rope/pointwise.h"
#include "src/ops/norm_rope/rope.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/ops/gemm/gemm_testing.h"

namespace mneme {
namespace {

class CudaPointwiseTest : public CudaTest {
 protected:
  CudaContext context() const { return {.stream = stream.get()}; }
};

std::vector<float> floats_of(const Tensor& t, std::int64_t n) {
  return {t.as<float>(), t.as<float>() + n};
}
double value(std::uint16_t bits) {
  bf16 v;
  v.bits = bits;
  return static_cast<double>(static_cast<float>(v));
}

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

// Bias, per-head norm, RoPE and the destination of every row's key and value, against the references.
struct StoreCase {
  std::int32_t head_dim, n_heads, n_kv_heads;
  bool bf16_in, f16_kv, neighbours, norms, bias;
};

void check_store(const StoreCase& c, const Stream& stream) {
  const CudaContext context{.stream = stream.get()};
  const std::vector<std::int32_t> positions = {0, 31, 32, 1000, 130999}, slots = {0, 0, 1, 1, -1};
  const std::int32_t n = 5, max_pages = 40, layers = 2, layer = 1;
  const std::int64_t width = std::int64_t{c.n_heads + 2 * c.n_kv_heads} * c.head_dim, d = c.head_dim;
  const Tensor qkv = random_f32(n, width, 31), bias = random_f32(1, width, 32), q_norm = random_f32(1, d, 33),
               k_norm = random_f32(1, d, 34), rounded = converted(qkv, DType::kBF16);
  RopeConfig rope;
  rope.pairs = c.neighbours ? RopePairs::kNeighbours : RopePairs::kHalves;
  rope.theta = 500000;
  const RopeTable table = RopeTable::make(rope, d, 131072);

  const DeviceArray<std::int32_t> positions_device(positions), slots_device(slots);
  const DeviceArray<double> inv_freq(table.inv_freq);
  const DeviceArray<float> angles(static_cast<std::size_t>(n * d)), bias_device(floats_of(bias, width)),
      q_norm_device(floats_of(q_norm, d)), k_norm_device(floats_of(k_norm, d)), f32(floats_of(qkv, n * width));
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(n * width));
  std::memcpy(bits.data(), rounded.view().data(), bits.size() * 2);
  const DeviceArray<std::uint16_t> narrow(bits), q_out(static_cast<std::size_t>(n * c.n_heads * d));
  // Two sequences' tables; pages in shuffled order.
  const std::int64_t stride = std::int64_t{layers} * c.n_kv_heads * max_pages, n_blocks = 2 * stride;
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(n_blocks));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int32_t>((i * 37 + 5) % blocks.size());
  const DeviceArray<std::int32_t> blocks_device(blocks);
  const DeviceArray<std::uint16_t> memory(static_cast<std::size_t>(n_blocks * kKvPageTokens * 2 * d));
  const KvTables tables{.base = reinterpret_cast<std::byte*>(memory.data()),
                        .blocks = blocks_device.data(),
                        .sequence_stride = stride,
                        .max_pages = max_pages,
                        .n_kv_heads = c.n_kv_heads,
                        .head_dim = c.head_dim,
                        .f16 = c.f16_kv};
  rope_angles_cuda(positions_device.data(), n, inv_freq.data(), static_cast<int>(d / 2), table.scale, angles.data(),
                   context);
  store_qkv_cuda({.qkv = c.bf16_in ? static_cast<const void*>(narrow.data()) : f32.data(),
                  .qkv_bf16 = c.bf16_in,
                  .bias = c.bias ? bias_device.data() : nullptr,
                  .q_norm = c.norms ? q_norm_device.data() : nullptr,
                  .k_norm = c.norms ? k_norm_device.data() : nullptr,
                  .norm_eps = 1e-6f,
                  .angles = angles.data(),
                  .neighbours = c.neighbours,
                  .positions = positions_device.data(),
                  .slots = slots_device.data(),
                  .n = n,
                  .n_heads = c.n_heads},
                 tables, layer, q_out.data(), context);

  const Tensor x(DType::kF32, {n, c.n_heads + 2 * c.n_kv_heads, d});
  for (std::int64_t i = 0; i < n * width; ++i) {
    x.as<float>()[i] = c.bf16_in ? static_cast<float>(value(bits[static_cast<std::size_t>(i)])) : qkv.as<float>()[i];
    if (c.bias) x.as<float>()[i] += bias.as<float>()[i % width];
  }
  const auto heads = [&](std::int64_t first, std::int64_t count) {
    Tensor t(DType::kF32, {n, count, d});
    for (std::int64_t i = 0; i < n; ++i)
      std::copy_n(x.as<float>() + i * width + first * d, count * d, t.as<float>() + i * count * d);
    return t;
  };
  const Tensor q = heads(0, c.n_heads), k = heads(c.n_heads, c.n_kv_heads),
               v = heads(c.n_heads + c.n_kv_heads, c.n_kv_heads);
  const auto finish = [&](const Tensor& t, std::int64_t count, const Tensor& norm) {
    const TensorView rows(t.view().data(), DType::kF32, {n * count, d});
    if (c.norms) rms_norm_ref(rows, norm.as<float>(), 1e-6, rows);
    rope_ref(t, positions, table);
  };
  finish(q, c.n_heads, q_norm);
  finish(k, c.n_kv_heads, k_norm);

  const std::vector<std::uint16_t> got_q = q_out.get(stream), got_kv = memory.get(stream);
  for (std::size_t i = 0; i < got_q.size(); ++i) {
    const auto want = static_cast<double>(q.as<float>()[i]);
    ASSERT_LE(std::abs(value(got_q[i]) - want), std::abs(want) * 0.0040 + 2e-6) << i;
  }
  std::size_t written = 0;
  for (std::int32_t row = 0; row < n; ++row) {
    const auto r = static_cast<std::size_t>(row);
    if (slots[r] < 0) continue;
    for (std::int32_t head = 0; head < c.n_kv_heads; ++head) {
      const auto entry = static_cast<std::size_t>(
          slots[r] * stride + (std::int64_t{layer} * c.n_kv_heads + head) * max_pages + positions[r] / kKvPageTokens);
      const std::uint16_t* token = got_kv.data() + (static_cast<std::size_t>(blocks[entry]) * kKvPageTokens +
                                                    static_cast<std::size_t>(positions[r] % kKvPageTokens)) *
                                                       static_cast<std::size_t>(2 * d);
      for (std::int64_t i = 0; i < 2 * d; ++i, ++written) {
        const Tensor& from = i < d ? k : v;
        const auto want = static_cast<double>(from.as<float>()[(row * c.n_kv_heads + head) * d + i % d]);
        f16 h;
        h.bits = token[i];
        const double got = c.f16_kv ? static_cast<double>(static_cast<float>(h)) : value(token[i]);
        ASSERT_LE(std::abs(got - want), std::abs(want) * 0.0040 + 1e-5) << row << ", " << head << ", " << i;
      }
    }
  }
  std::size_t touched = 0;
  for (const std::uint16_t b : got_kv) touched += b != 0xffff ? 1 : 0;
  ASSERT_EQ(touched, written);  // nothing else, and nothing for the row without a sequence
}

TEST_F(CudaPointwiseTest, StoresQueriesKeysAndValues) {
  for (const StoreCase& c :
       {StoreCase{128, 8, 2, false, false, false, false, false}, StoreCase{64, 7, 1, true, false, true, false, true},
        StoreCase{128, 4, 4, true, true, false, true, false}, StoreCase{80, 5, 5, false, false, true, true, true},
        StoreCase{256, 2, 1, true, false, false, false, false}})
    check_store(c, stream);
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
