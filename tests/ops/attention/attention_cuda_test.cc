#include "src/ops/attention/attention_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "src/base/error.h"
#include "src/kv/kv_quant.h"
#include "src/ops/attention/attention_merge_cuda.h"
#include "src/ops/attention/head_dims_cuda.h"
#include "src/ops/attention/window/attention_window_cuda.h"
#include "src/ops/norm_rope/rotate_keys.h"
#include "src/ops/norm_rope/rotate_keys_cuda.h"
#include "tests/ops/attention/attention_cuda_testing.h"

namespace mneme {
namespace {

using testing::kNaN;

TEST_F(CudaAttentionTest, DecodesEveryGroupAndLength) {
  for (const std::int32_t head_dim : attention_head_dims_cuda())
    for (const int group : {1, 4, 5, 7, 8, 16})
      for (const DType type : {DType::kBF16, DType::kF16, DType::kInt8, DType::kFp8}) {
        if (is_eight_bit(type) && !takes_eight_bit(head_dim)) continue;
        SCOPED_TRACE(::testing::Message() << "D " << head_dim << ", group " << group << " " << dtype_name(type));
        Paged kv(shape_of(group, head_dim, type), 2, 3, 300, 1);
        const std::vector<std::int32_t> slots = {2, 0, 1, 0, 2, 1, 0}, lengths = {0, 1, 31, 32, 33, 257, 300};
        const Queries q(slots.size() * 2 * static_cast<std::size_t>(group * head_dim), 2);
        check_decode(kv, q, slots, lengths);
      }
}

TEST_F(CudaAttentionTest, DecodesLongContextsWithSplitKv) {
  for (const std::int32_t head_dim : attention_head_dims_cuda()) {
    Paged kv(shape_of(4, head_dim, DType::kBF16), 8, 1, 9001, 3);
    const Queries q(static_cast<std::size_t>(32 * head_dim), 4);
    for (const std::int32_t length : {9001, 4224, 4225, 2048, 512})
      check_decode(kv, q, std::array{0}, std::array{length});
    Paged many(shape_of(4, head_dim, DType::kBF16), 4, 3, 2500, 3);
    const std::vector<std::int32_t> slots = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1},
                                    lengths = {2500, 1, 0, 77, 2000, 640, 5, 0, 0, 1999, 32};
    check_decode(many, Queries(slots.size() * 16 * static_cast<std::size_t>(head_dim), 5), slots, lengths);
  }
}

TEST(EightBitHeads, OthersAreRefusedByName) {
  for (const std::int32_t head_dim : {64, 128}) EXPECT_NO_THROW(expect_eight_bit_cuda(head_dim));
  try {
    expect_eight_bit_cuda(96);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("kv_cache_dtype"), std::string::npos) << e.what();
  }
}

TEST_F(CudaAttentionTest, DecodesLongContextsInEightBits) {
  for (const DType type : {DType::kInt8, DType::kFp8}) {
    Paged kv(shape_of(4, 128, type), 8, 1, 9001, 3);
    const Queries q(32 * 128, 4);
    for (const std::int32_t length : {9001, 4224, 513}) check_decode(kv, q, std::array{0}, std::array{length});
  }
}

class CudaAttentionTypes : public CudaAttentionTest, public ::testing::WithParamInterface<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaAttentionTypes, ::testing::Values(DType::kBF16, DType::kInt8, DType::kFp8),
                         [](const auto& p) { return std::string(dtype_name(p.param)); });

TEST_P(CudaAttentionTypes, DecodesWindowsWeightsAndLengthsPerHead) {
  Paged kv(shape_of(4, 128, GetParam()), 2, 2, 700, 6);
  const std::vector<std::int32_t> slots = {0, 1, 1}, lengths = {700, 20, 333};
  const Queries q(3 * 8 * 128, 7);
  for (const std::int32_t window : {1, 31, 64, 100, 1000}) check_decode(kv, q, slots, lengths, window);
  std::mt19937 rng(8);
  const std::vector<float> weights = testing::random_floats(3 * 2 * 704, rng, 2.0f);
  check_decode(kv, q, slots, lengths, 0, weights);
  const std::vector<std::int32_t> per_head = {700, 3, 0, 64, 333, 320};
  check_decode(kv, q, slots, per_head, 0, {}, true);
}

TEST_P(CudaAttentionTypes, LargeScoresAndNaNStayWhereTheyAre) {
  Paged kv(shape_of(4, 128, GetParam()), 2, 1, 500, 9);
  // Of scores so large, a rounded key decides which token has all the weight.
  if (GetParam() == DType::kBF16) check_decode(kv, Queries(8 * 128, 10, 300.0f), std::array{0}, std::array{500});
  const Queries q(8 * 128, 11);
  const Decoded clean = decode(kv, q, std::array{0}, std::array{500});
  set_nan(kv.token(0, 1, 250), kv.shape);
  set_nan(kv.token(0, 0, 500), kv.shape);  // after the last token: not read
  kv.upload();
  const Decoded got = decode(kv, q, std::array{0}, std::array{500});
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    if (i < 4 * 128) {
      ASSERT_EQ(got.out[i], clean.out[i]);
    } else {
      ASSERT_TRUE(std::isnan(value(got.out[i])));
    }
  }
}

// Rows with one large element: the codes of all others are subnormal numbers of e4m3. Queries ignore the large one.
TEST_F(CudaAttentionTest, SubnormalCodesCount) {
  constexpr std::int32_t kDim = 128, kTokens = 70;
  constexpr float kSmall = 1e-5f;
  Paged kv(shape_of(1, kDim, DType::kFp8), 1, 1, kTokens, 9);
  std::mt19937 rng(3);
  for (std::int32_t t = 0; t < kTokens; ++t) {
    std::vector<float> token = testing::random_floats(2 * kDim, rng, kSmall);
    token[0] = token[kDim] = 1.0f;
    store_kv(token.data(), token.data() + kDim, kv.shape, kv.token(0, 0, t));
  }
  kv.upload();
  Queries q(kDim, 4, 1.0f / kSmall);
  q.values[0] = 0, q.bits[0] = 0;
  const Decoded got = decode(kv, q, std::array{0}, std::array{kTokens});
  const std::vector<KvRun> runs = kv.runs(0, 0, 0, kTokens);
  const DecodePart part{.q = q.values.data(), .runs = runs};
  std::vector<float> out(kDim), lse(1);
  const DecodeHead one{.parts = std::span(&part, 1), .out = out.data(), .lse = lse.data()};
  attend_decode_ref(std::span(&one, 1), kv.shape);
  EXPECT_NEAR(got.lse[0], lse[0], 0.02);
  for (std::size_t i = 1; i < out.size(); ++i)
    ASSERT_LE(std::abs(value(got.out[i]) - static_cast<double>(out[i])), 0.02 * static_cast<double>(kSmall)) << i;
}

TEST_F(CudaAttentionTest, GathersWhatReadersSee) {
  for (const DType type : {DType::kBF16, DType::kInt8, DType::kFp8}) {
    Paged kv(shape_of(4, 64, type), 2, 2, 300, 14);
    constexpr std::int32_t kTokens = 203, kTokensAHead = 256;
    const DeviceArray<std::uint16_t> out(2 * kTokensAHead * 2 * 64);
    gather_kv_cuda(kv.tables(), Paged::kLayer, 1, kTokens, kTokensAHead, out.data(), context());
    const std::vector<std::uint16_t> got = out.get(stream);
    for (std::int32_t head = 0; head < 2; ++head)
      for (std::int32_t t = 0; t < kTokens; ++t)
        for (std::int32_t i = 0; i < 2 * 64; ++i)
          ASSERT_EQ(value(got[static_cast<std::size_t>((head * kTokensAHead + t) * 2 * 64 + i)]),
                    load_kv(kv.token(1, head, t), i, type, 64))
              << dtype_name(type) << " " << head << ", " << t << ", " << i;
  }
}

// The element type of tests with several groups.
DType type_of(int group) {
  return group == 4 ? DType::kF16 : group == 7 ? DType::kInt8 : group == 16 ? DType::kFp8 : DType::kBF16;
}

// Tables of single tokens: entry i of every head is its token at position_of(i).
struct Listed {
  std::int32_t most;  // entries per head
  DeviceArray<std::int32_t> entries{0};
  KvTables tables;

  template <typename F>
  Listed(Paged& kv, std::int32_t n_sequences, F&& position_of) : most(kv.max_pages * kKvPageTokens) {
    std::vector<std::int32_t> numbers;
    for (std::int32_t sequence = 0; sequence < n_sequences; ++sequence)
      for (std::int32_t head = 0; head < kv.n_kv_heads; ++head)
        for (std::int32_t i = 0; i < most; ++i)
          numbers.push_back(
              static_cast<std::int32_t>((kv.token(sequence, head, position_of(i) % most) - kv.memory.data()) /
                                        static_cast<std::ptrdiff_t>(kv.shape.token_bytes())));
    entries = DeviceArray<std::int32_t>(numbers);
    tables = kv.tables();
    tables.of_tokens = true, tables.max_pages = most, tables.sequence_stride = std::int64_t{kv.n_kv_heads} * most;
    tables.blocks = entries.data();
  }
};

// Attention over every third token, `lengths` of them per row, against the reference.
void expect_every_third(Paged& kv, const Queries& q, std::span<const std::int32_t> slots,
                        std::span<const std::int32_t> lengths, std::span<const std::uint16_t> got) {
  const auto width = static_cast<std::size_t>(kv.shape.group * kv.shape.head_dim),
             heads = static_cast<std::size_t>(kv.n_kv_heads);
  for (std::size_t row = 0; row < slots.size(); ++row)
    for (std::int32_t head = 0; head < kv.n_kv_heads; ++head) {
      SCOPED_TRACE(::testing::Message() << "row " << row << ", head " << head << ", " << lengths[row] << " tokens");
      std::vector<KvRun> runs;
      for (std::int32_t i = 0; i < lengths[row]; ++i)
        runs.push_back({kv.token(slots[row], head, i * 3 % (kv.max_pages * kKvPageTokens)), 1});
      const std::size_t item = row * heads + static_cast<std::size_t>(head);
      const DecodePart part{.q = q.values.data() + item * width, .runs = runs};
      std::vector<float> out(width), lse(static_cast<std::size_t>(kv.shape.group));
      const DecodeHead one{.parts = std::span(&part, 1), .out = out.data(), .lse = lse.data()};
      attend_decode_ref(std::span(&one, 1), kv.shape);
      expect_close(got.subspan(item * width, width), out);
    }
}

// Tables of single tokens give the same bits as pages with these tokens in this order, for any tokens; in 8 bits, whose
// pages 4 warps read and whose lists 8, the same within the order of sums.
TEST_F(CudaAttentionTest, TokensAreWhatTheirPagesAre) {
  for (const int head_dim : {64, 128})
    for (const int group : {1, 4, 7, 16}) {
      SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", group " << group);
      const std::vector<std::int32_t> slots = {2, 0, 1, 0}, lengths = {2101, 64, 33, 1}, few = {700, 65, 31, 1};
      Paged kv(shape_of(group, head_dim, type_of(group)), 3, 3, 2200, 5);
      const Queries q(slots.size() * static_cast<std::size_t>(3 * group * head_dim), 6);
      const Listed same(kv, 3, [](std::int32_t i) { return i; }), third(kv, 3, [](std::int32_t i) { return i * 3; });
      const Decoded want = decode(kv, q, slots, lengths), got = decode(kv, same.tables, 0, q, slots, lengths);
      if (group == 7 || group == 16) {
        std::vector<float> pages;
        for (const std::uint16_t bits : want.out) pages.push_back(value(bits));
        expect_close(got.out, pages);
        for (std::size_t i = 0; i < want.lse.size(); ++i)
          EXPECT_TRUE(got.lse[i] == want.lse[i] || std::abs(got.lse[i] - want.lse[i]) < 1e-4f) << i;
      } else {
        EXPECT_EQ(got.out, want.out);
        EXPECT_EQ(got.lse, want.lse);
      }
      expect_every_third(kv, q, slots, few, decode(kv, third.tables, 0, q, slots, few).out);
    }
}

// As many items as there are clusters of 16, 5 and 4 blocks; some blocks have no work.
TEST_F(CudaAttentionTest, TokensAreMergedInClusters) {
  for (const int head_dim : {64, 128})
    for (const int group : {1, 4, 16})
      for (const auto& [kv_heads, lengths] : std::initializer_list<std::pair<std::int32_t, std::vector<std::int32_t>>>{
               {8, {1500}}, {8, {700, 33, 0}}, {8, {0}}, {8, {250}}, {32, {600}}, {32, {1}}}) {
        SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", group " << group << ", heads " << kv_heads);
        const std::vector<std::int32_t> slots(lengths.size(), 0);
        Paged kv(shape_of(group, head_dim, type_of(group)), kv_heads, 1, lengths[0] + 1, 5);
        const Queries q(slots.size() * static_cast<std::size_t>(kv_heads * group * head_dim), 6);
        const Listed third(kv, 1, [](std::int32_t i) { return i * 3; });
        expect_every_third(kv, q, slots, lengths, decode(kv, third.tables, 0, q, slots, lengths).out);
      }
}

// Two-part attention: the local part in a ring of pages with one query, the first tokens with another, merged by LSE.
TEST_F(CudaAttentionTest, TwoPartsMadeOneAreBoth) {
  for (const std::int32_t head_dim : attention_head_dims_cuda())
    for (const int group : {1, 5}) {
      Paged kv(shape_of(group, head_dim, DType::kBF16), 2, 4, 700, 21);
      const std::vector<std::int32_t> slots = {0, 1, 2, 3, 1}, begins = {0, 100, 640, 33, 300},
                                      lengths = {1, 300, 700, 33, 300}, remote = {0, 100, 7, 33, 0};
      const auto n = static_cast<std::int32_t>(slots.size());
      const auto width = static_cast<std::size_t>(2 * group * head_dim), heads = static_cast<std::size_t>(2 * group);
      const Queries q(slots.size() * width, 22), remote_q(slots.size() * width, 23);
      // Page p of the ring is page p of the sequence: tables that repeat after as many pages as a row attends.
      constexpr std::int32_t kRing = 9;
      std::vector<std::int32_t> ring;
      for (std::size_t row = 0; row < slots.size(); ++row)
        for (std::int32_t entry = 0; entry < 2 * kRing; ++entry) {
          std::int32_t page = entry % kRing;
          while (page < begins[row] / kKvPageTokens) page += kRing;
          page = std::min(page, kv.max_pages - 1);
          ring.push_back(kv.blocks[static_cast<std::size_t>(
              slots[row] * kv.stride() + (Paged::kLayer * 2 + entry / kRing) * kv.max_pages + page)]);
        }
      const DeviceArray<std::int32_t> ring_device(ring), slots_device(slots), rows_device(std::vector{0, 1, 2, 3, 4}),
          begins_device(begins), lengths_device(lengths), remote_device(remote);
      KvTables local = kv.tables();
      local.blocks = ring_device.data(), local.sequence_stride = 2 * kRing, local.max_pages = kRing;
      const DeviceArray<std::uint16_t> q_device(q.bits), remote_q_device(remote_q.bits), a_out(q.bits.size()),
          b_out(q.bits.size()), out(q.bits.size());
      const DeviceArray<float> a_lse(slots.size() * heads), b_lse(slots.size() * heads);
      const DeviceArray<std::byte> scratch(decode_attention_scratch_bytes(n, 2, head_dim), 0);
      DecodeAttentionCuda a{.q = q_device.data(),
                            .slots = rows_device.data(),
                            .lengths = lengths_device.data(),
                            .begins = begins_device.data(),
                            .page_ring = kRing,
                            .out = a_out.data(),
                            .lse = a_lse.data(),
                            .n = n,
                            .n_heads = 2 * group,
                            .scale = kv.shape.scale,
                            .scratch = scratch.data()};
      attend_decode_cuda(a, local, 0, context());
      a.q = remote_q_device.data(), a.slots = slots_device.data(), a.lengths = remote_device.data(), a.begins = nullptr;
      a.page_ring = 0, a.out = b_out.data(), a.lse = b_lse.data();
      attend_decode_cuda(a, kv.tables(), Paged::kLayer, context());
      merge_attention_cuda({a_out.data(), a_lse.data()}, {b_out.data(), b_lse.data()}, n, 2 * group, head_dim,
                           out.data(), context());
      std::vector<float> want(q.values.size());
      for (std::size_t row = 0; row < slots.size(); ++row)
        for (std::int32_t head = 0; head < 2; ++head) {
          const std::vector<KvRun> first = kv.runs(slots[row], head, 0, remote[row]),
                                   last = kv.runs(slots[row], head, begins[row], lengths[row]);
          const std::size_t at = row * width + static_cast<std::size_t>(head * group * head_dim);
          const DecodePart parts[2] = {{.q = remote_q.values.data() + at, .runs = first},
                                       {.q = q.values.data() + at, .runs = last}};
          const DecodeHead one{.parts = parts, .out = want.data() + at};
          attend_decode_ref(std::span(&one, 1), kv.shape);
        }
      expect_close(out.get(stream), want);
    }
}

// Blocks of rows with sinks, selected units, a middle and a local part, in pages whose other tokens are NaN.
TEST_F(CudaAttentionTest, WindowsSeeTheirParts) {
  for (const std::int32_t head_dim : attention_head_dims_cuda())
    for (const int group : {1, 4, 7}) {
      Paged kv(shape_of(group, head_dim, DType::kBF16), 2, 2, 1100, 31);
      const auto width = static_cast<std::size_t>(2 * group * head_dim);
      struct Case {
        std::int32_t first, sink, recent;
        std::vector<WindowBlock> blocks;
        std::vector<std::vector<std::int32_t>> units;  // by window
      };
      const std::vector<Case> cases = {
          {0, 4, 40, {{.n_rows = 1}}, {}},
          {0, 4, 40, {{.n_rows = 128}, {.row = 128, .n_rows = 5}}, {}},
          {300, 4, 96, {{.n_rows = 20, .base = 4, .sinks = 1, .slides = 1}}, {}},
          {300, 40, 33, {{.n_rows = 128, .base = 40, .sinks = 1, .slides = 1}}, {}},
          {20, 4, 33, {{.n_rows = 100, .middle = 1, .slides = 1}}, {}},
          {700,
           64,
           128,
           {{.n_rows = 68, .window = 0, .base = 576, .sinks = 1, .middle = 1, .slides = 1},
            {.row = 68, .n_rows = 128, .window = 1, .base = 640, .sinks = 1, .middle = 1, .slides = 1},
            {.row = 196, .n_rows = 127, .window = 1, .base = 640, .sinks = 1, .middle = 1, .slides = 1}},
           {{2, 3, 17}, {5}}},
          {701, 32, 64, {{.n_rows = 90, .window = 0, .base = 640, .sinks = 1}}, {{}}},
      };
      for (const Case& c : cases) {
        SCOPED_TRACE(::testing::Message() << "D " << head_dim << ", group " << group << ", first " << c.first
                                          << ", recent " << c.recent << ", " << c.blocks.size() << " blocks");
        std::int32_t n_rows = 0;
        for (const WindowBlock& b : c.blocks) n_rows = std::max(n_rows, b.row + b.n_rows);
        const Queries q(static_cast<std::size_t>(n_rows) * width, 32), remote_q(q.bits.size(), 33);
        std::vector<float> want(q.values.size());
        for (const WindowBlock& b : c.blocks)
          for (std::int32_t row = b.row; row < b.row + b.n_rows; ++row)
            for (std::int32_t head = 0; head < 2; ++head) {
              const std::int32_t p = c.first + row, from = b.slides ? std::max(b.base, p - c.recent + 1) : b.base;
              std::vector<KvRun> remote, local = kv.runs(1, head, from, p + 1);
              const auto add = [&](std::int32_t begin, std::int32_t end) {
                for (const KvRun& r : kv.runs(1, head, begin, end)) remote.push_back(r);
              };
              if (b.sinks) add(0, c.sink);
              if (!c.units.empty())
                for (const std::int32_t u : c.units[static_cast<std::size_t>(b.window)])
                  add(u * kKvPageTokens, (u + 1) * kKvPageTokens);
              if (b.middle) add(b.base, p - c.recent + 1);
              const std::size_t at =
                  static_cast<std::size_t>(row) * width + static_cast<std::size_t>(head * group * head_dim);
              const DecodePart parts[2] = {{.q = remote_q.values.data() + at, .runs = remote},
                                           {.q = q.values.data() + at, .runs = local}};
              const DecodeHead one{.parts = parts, .out = want.data() + at};
              attend_decode_ref(std::span(&one, 1), kv.shape);
            }
        // Tokens that no row attends are NaN.
        Paged there(kv.shape, 2, 2, 1100, 31);
        for (std::int32_t t = c.first + n_rows; t < 1100; ++t)
          for (std::int32_t head = 0; head < 2; ++head)
            testing::set_kv(there.token(1, head, t), head_dim + 3, DType::kBF16, kNaN);
        there.upload();
        constexpr std::int32_t kStride = 4;
        std::vector<std::int32_t> units(c.units.size() * kStride, -1), n_units;
        for (std::size_t w = 0; w < c.units.size(); ++w) {
          std::copy(c.units[w].begin(), c.units[w].end(), units.begin() + static_cast<std::ptrdiff_t>(w * kStride));
          n_units.push_back(static_cast<std::int32_t>(c.units[w].size()));
        }
        const DeviceArray<std::uint16_t> q_device(q.bits), remote_device(remote_q.bits), out(q.bits.size());
        const DeviceArray<WindowBlock> blocks(c.blocks);
        const DeviceArray<std::int32_t> units_device(units), n_units_device(n_units);
        WindowAttentionCuda a{.q = q_device.data(),
                              .remote_q = remote_device.data(),
                              .out = out.data(),
                              .blocks = blocks.data(),
                              .n_blocks = static_cast<std::int32_t>(c.blocks.size()),
                              .units = c.units.empty() ? nullptr : units_device.data(),
                              .n_units = c.units.empty() ? nullptr : n_units_device.data(),
                              .unit_stride = kStride,
                              .remote = there.tables(),
                              .local = there.tables(),
                              .remote_at = {1, Paged::kLayer},
                              .local_at = {1, Paged::kLayer},
                              .first = c.first,
                              .n_heads = 2 * group,
                              .sink = c.sink,
                              .recent = c.recent,
                              .scale = kv.shape.scale};
        attend_windows_cuda(a, context());
        expect_close(out.get(stream), want);
      }
    }
}

// Keys rotated on the device equal those rotated on the CPU up to the last bit of an angle.
TEST_F(CudaAttentionTest, RotatesKeysIntoARing) {
  ThreadPool threads(2);
  const CpuContext cpu{.pool = &threads};
  for (const DType type : {DType::kBF16, DType::kF16, DType::kInt8, DType::kFp8})
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours})
      for (const std::int32_t head_dim : attention_head_dims_cuda()) {
        if (is_eight_bit(type) && !takes_eight_bit(head_dim)) continue;
        Paged from(shape_of(4, head_dim, type), 2, 2, 700, 41), to(from.shape, 2, 1, 150, 42);
        RopeConfig config;
        config.pairs = pairs;
        const RopeTable rope = RopeTable::make(config, head_dim, 4096);
        const DeviceArray<double> inv_freq(rope.inv_freq);
        constexpr std::int32_t kBegin = 533, kEnd = 660, kRing = 5;
        rotate_keys_cuda({.from = from.tables(),
                          .to = to.tables(),
                          .from_slot = 1,
                          .from_layer = Paged::kLayer,
                          .to_layer = Paged::kLayer,
                          .begin = kBegin,
                          .end = kEnd,
                          .ring = kRing,
                          .inv_freq = inv_freq.data(),
                          .neighbours = pairs == RopePairs::kNeighbours},
                         context());
        const std::vector<std::byte> got = to.memory_device.get(stream);
        std::vector<std::int32_t> positions(kEnd - kBegin);
        std::iota(positions.begin(), positions.end(), kBegin);
        const RopeAngles angles(positions, rope, cpu);
        for (std::int32_t head = 0; head < 2; ++head) {
          std::int32_t apart = 0;
          std::vector<std::byte> want(positions.size() * from.shape.token_bytes());
          if (is_eight_bit(type)) {
            rotate_keys_cpu(from.runs(1, head, kBegin, kEnd), from.shape, angles, 0, want.data());
          } else {
            rotate_keys_ref(from.runs(1, head, kBegin, kEnd), from.shape, angles, 0, want.data());
          }
          for (std::int32_t t = kBegin; t < kEnd; ++t)
            for (std::int32_t c = 0; c < 2 * head_dim; ++c) {
              const auto number = [&](const std::byte* p) { return load_kv(p, c, type, head_dim); };
              const float w = number(want.data() + static_cast<std::size_t>(t - kBegin) * from.shape.token_bytes());
              const float g = number(got.data() + (to.token(0, head, t % (32 * kRing)) - to.memory.data()));
              // Codes next to a rounding limit may be one step apart.
              const float step = type == DType::kInt8  ? 0.05f
                                 : type == DType::kFp8 ? 0.13f * std::abs(w) + 0.01f
                                                       : 0.008f * std::abs(w) + 1e-5f;
              ASSERT_LE(std::abs(g - w), c < head_dim ? step : 0.0f) << t << ", " << c;
              apart += std::abs(g - w) > 0.008f * std::abs(w) + 1e-5f ? 1 : 0;
            }
          EXPECT_LE(apart, (kEnd - kBegin) * head_dim / 200);
        }
      }
}

}  // namespace
}  // namespace mneme
