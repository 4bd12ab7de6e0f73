// Attention of prompts on a GPU: the library's rows and this project's, in one part and in splits.
#include "src/ops/attention/prefill/prefill_attention_cuda.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/ops/attention/head_dims_cuda.h"
#include "tests/ops/attention/attention_cuda_testing.h"

namespace mneme {
namespace {

TEST_F(CudaAttentionTest, RowsOfTheLibraryAreWholeWaves) {
  EXPECT_EQ(library_rows(32, 32, 132), 0);
  EXPECT_EQ(library_rows(255, 32, 132), 0);
  EXPECT_EQ(library_rows(256, 32, 132), 256);
  EXPECT_EQ(library_rows(512, 32, 132), 512);
  EXPECT_EQ(library_rows(544, 32, 132), 512);
  EXPECT_EQ(library_rows(1000, 32, 132), 1000);
  EXPECT_EQ(library_rows(100, 64, 40), 100) << "no whole wave";
}

struct Chunk {
  std::int32_t first, n_rows, window;
};

std::vector<float> prefill_reference(Paged& kv, const Chunk& c, int group, const Queries& q) {
  const std::int32_t head_dim = kv.shape.head_dim;
  const auto width = static_cast<std::int64_t>(2 * group * head_dim);
  std::vector<float> want(q.values.size());
  for (std::int32_t head = 0; head < 2; ++head) {
    const std::vector<KvRun> runs = kv.runs(1, head, 0, c.first + c.n_rows);
    const PrefillPart part{.q = q.values.data() + head * group * head_dim,
                           .q_stride = width,
                           .runs = runs,
                           .causal = true,
                           .window = c.window};
    const PrefillHead one{.parts = std::span(&part, 1),
                          .n_rows = c.n_rows,
                          .out = reinterpret_cast<std::byte*>(want.data() + head * group * head_dim),
                          .out_stride = width};
    attend_prefill_ref(std::span(&one, 1), kv.shape);
  }
  return want;
}

// In one part, in splits, and by what PrefillAttention makes of it.
TEST_F(CudaAttentionTest, PrefillsChunksAfterEarlierPages) {
  constexpr std::int32_t kMost = 2100;
  const std::vector<Chunk> many = {{0, 1, 0},    {0, 33, 0},   {31, 129, 0},  {1000, 16, 0},   {100, 140, 50},
                                   {0, 100, 32}, {2037, 1, 0}, {1999, 37, 0}, {1500, 67, 1111}};
  const std::vector<Chunk> library = {{64, 544, 0}, {1999, 37, 0}};  // of 32 heads, on an H200 512 rows and 32
  const DeviceArray<std::byte> scratch(prefill_attention_scratch_bytes(256));
  for (const std::int32_t head_dim : attention_head_dims_cuda())
    for (const int group : {1, 7, 16}) {
      Paged kv(shape_of(group, head_dim, DType::kBF16), 2, 2, kMost, 12);
      PrefillAttention prefill;
      prefill.prepare(kv.tables(), kMost, false, false);
      for (const Chunk& c : group == 16 ? library : many) {
        SCOPED_TRACE(::testing::Message() << "D " << head_dim << ", group " << group << ": " << c.n_rows << " after "
                                          << c.first << ", window " << c.window);
        const std::size_t n = static_cast<std::size_t>(c.n_rows * 2 * group);
        const Queries q(n * static_cast<std::size_t>(head_dim), 13);
        const std::vector<float> want = prefill_reference(kv, c, group, q);
        const DeviceArray<std::uint16_t> q_device(q.bits), out(q.bits.size());
        const DeviceArray<float> lse(n), split_lse(n);
        PrefillAttentionCuda a{.q = q_device.data(),
                               .out = out.data(),
                               .slot = 1,
                               .first = c.first,
                               .n_rows = c.n_rows,
                               .n_heads = 2 * group,
                               .window = c.window,
                               .scale = kv.shape.scale};
        prefill.attend(a, kv.tables(), Paged::kLayer, context());
        expect_close(out.get(stream), want);
        a.lse = lse.data();
        attend_prefill_cuda(a, kv.tables(), Paged::kLayer, context());
        expect_close(out.get(stream), want);
        a.lse = split_lse.data(), a.scratch = scratch.data();
        attend_prefill_cuda(a, kv.tables(), Paged::kLayer, context());
        expect_close(out.get(stream), want);
        const std::vector<float> whole = lse.get(stream), split = split_lse.get(stream);
        for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(split[i], whole[i], 1e-4) << i;
      }
    }
}

// Row 3 of head 1 alone attends the NaN of its own token; splits keep it to the rows and heads that it is of.
TEST_F(CudaAttentionTest, NaNStaysInItsRowsThroughSplits) {
  constexpr std::int32_t kRows = 5, kFirst = 1500, kDim = 128, kHeads = 8;
  Paged kv(shape_of(4, kDim, DType::kBF16), 2, 1, kFirst + kRows, 9);
  const DeviceArray<std::byte> scratch(prefill_attention_scratch_bytes(kDim));
  const auto attend = [&] {
    const Queries q(kRows * kHeads * kDim, 10);
    const DeviceArray<std::uint16_t> q_device(q.bits), out(q.bits.size());
    attend_prefill_cuda({.q = q_device.data(),
                         .out = out.data(),
                         .first = kFirst,
                         .n_rows = kRows,
                         .n_heads = kHeads,
                         .scale = kv.shape.scale,
                         .scratch = scratch.data()},
                        kv.tables(), Paged::kLayer, context());
    return out.get(stream);
  };
  const std::vector<std::uint16_t> clean = attend();
  set_nan(kv.token(0, 1, kFirst + 3), kv.shape);
  kv.upload();
  const std::vector<std::uint16_t> got = attend();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::size_t row = i / (kHeads * kDim), head = i / kDim % kHeads;
    if (row >= 3 && head >= 4) {
      ASSERT_TRUE(std::isnan(value(got[i]))) << i;
    } else {
      ASSERT_EQ(got[i], clean[i]) << i;
    }
  }
}

}  // namespace
}  // namespace mneme
