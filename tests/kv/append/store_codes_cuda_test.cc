// Keys and values stored in 8 bits on the device: codes and scales are those of the CPU, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/rng.h"
#include "src/kv/append/append_cuda.h"
#include "src/kv/kv_run.h"
#include "src/kv/page_pool.h"
#include "tests/cuda/cuda_testing.h"

namespace mneme {
namespace {

struct CodeCase {
  DType dtype;
  std::int32_t head_dim;
  bool neighbours, bf16_in;
};

class CudaStoreCodes : public CudaTest, public ::testing::WithParamInterface<CodeCase> {
 protected:
  CudaContext context() const { return {.stream = stream.get()}; }
};

// Rows of very different sizes; some with one large element, zeros, elements that are tiny, or not finite.
std::vector<float> rows_of(std::int64_t n_rows, std::int32_t d) {
  Rng rng(11);
  std::vector<float> x;
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const double size = std::exp2(40 * rng.uniform() - 20);
    for (std::int32_t i = 0; i < d; ++i) x.push_back(static_cast<float>(size * rng.normal()));
    float* row = x.data() + r * d;
    if (r % 2 == 0) row[rng.below(static_cast<std::uint64_t>(d))] *= 50.0f;
    if (r % 5 == 1) row[rng.below(static_cast<std::uint64_t>(d))] = 0.0f;
    if (r % 11 == 3) std::fill_n(row, d, 0.0f);
    if (r % 11 == 4) std::fill_n(row, d, 1e-35f);
    if (r % 11 == 5) row[d - 1] = std::numeric_limits<float>::quiet_NaN();
    if (r % 11 == 6) row[0] = -std::numeric_limits<float>::infinity();
    if (r % 11 == 7)  // halfway between two codes
      for (std::int32_t i = 0; i < d; ++i) row[i] = static_cast<float>(i - d / 2) + 0.5f;
  }
  return x;
}

TEST_P(CudaStoreCodes, AreThoseOfTheCpu) {
  const CodeCase& c = GetParam();
  constexpr std::int32_t kRows = 70, kHeads = 3, kKvHeads = 3, kPages = 4;
  const std::int32_t d = c.head_dim, width = (kHeads + 2 * kKvHeads) * d;
  std::vector<float> qkv = rows_of(kRows * width / d, d);
  std::vector<std::uint16_t> narrow;
  for (float& v : qkv) {
    narrow.push_back(bf16(v).bits);
    if (c.bf16_in) v = static_cast<float>(bf16(v));
  }
  // Angles of 0: keys are stored as they are.
  std::vector<float> angles;
  for (std::int32_t i = 0; i < kRows * d / 2; ++i) angles.push_back(1.0f), angles.push_back(0.0f);
  std::vector<std::int32_t> positions, blocks;
  for (std::int32_t i = 0; i < kRows; ++i) positions.push_back(i);
  for (std::int32_t i = 0; i < kKvHeads * kPages; ++i) blocks.push_back(kKvHeads * kPages - 1 - i);
  const AttentionShape shape{.head_dim = d, .kv_dtype = c.dtype};
  const KvShape kv{.n_layers = 1, .n_kv_heads = kKvHeads, .head_dim = d, .dtype = c.dtype};
  const DeviceArray<float> f32(qkv), angles_device(angles);
  const DeviceArray<std::uint16_t> half(narrow), q(static_cast<std::size_t>(kRows * kHeads * d));
  const DeviceArray<std::int32_t> positions_device(positions), blocks_device(blocks);
  const DeviceArray<std::byte> memory(blocks.size() * kv.page_bytes());
  const KvTables tables{.base = memory.data(),
                        .blocks = blocks_device.data(),
                        .sequence_stride = kKvHeads * kPages,
                        .max_pages = kPages,
                        .n_kv_heads = kKvHeads,
                        .head_dim = d,
                        .codes = kv_codes_of(c.dtype)};
  store_qkv_cuda({.qkv = c.bf16_in ? static_cast<const void*>(half.data()) : f32.data(),
                  .qkv_bf16 = c.bf16_in,
                  .angles = angles_device.data(),
                  .neighbours = c.neighbours,
                  .positions = positions_device.data(),
                  .n = kRows,
                  .n_heads = kHeads,
                  .store = {},
                  .local = {}},
                 tables, 0, q.data(), context());
  const std::vector<std::byte> got = memory.get(stream);
  std::vector<std::byte> want(shape.token_bytes());
  for (std::int32_t row = 0; row < kRows; ++row)
    for (std::int32_t head = 0; head < kKvHeads; ++head) {
      const float* k = qkv.data() + row * width + (kHeads + head) * d;
      store_kv(k, k + kKvHeads * d, shape, want.data());
      const auto block = static_cast<std::size_t>(blocks[static_cast<std::size_t>(head * kPages + row / kPageTokens)]);
      const std::byte* token =
          got.data() + block * kv.page_bytes() + static_cast<std::size_t>(row % kPageTokens) * shape.token_bytes();
      for (std::size_t i = 0; i < 2 * static_cast<std::size_t>(d); ++i)
        ASSERT_EQ(token[i], want[i]) << row << ", " << head << ", " << i << ": " << k[i];
      float scales[2], expected[2];
      std::memcpy(scales, token + 2 * d, sizeof(scales));
      std::memcpy(expected, want.data() + 2 * d, sizeof(expected));
      for (int part = 0; part < 2; ++part)
        ASSERT_TRUE(scales[part] == expected[part] || (std::isnan(scales[part]) && std::isnan(expected[part])))
            << row << ", " << head << ": " << scales[part] << ", expected " << expected[part];
    }
}

INSTANTIATE_TEST_SUITE_P(
    Types, CudaStoreCodes,
    ::testing::Values(CodeCase{DType::kInt8, 128, false, false}, CodeCase{DType::kFp8, 128, false, true},
                      CodeCase{DType::kInt8, 64, true, true}, CodeCase{DType::kFp8, 64, true, false}),
    [](const auto& p) { return std::string(dtype_name(p.param.dtype)) + "_" + std::to_string(p.param.head_dim); });

}  // namespace
}  // namespace mneme
