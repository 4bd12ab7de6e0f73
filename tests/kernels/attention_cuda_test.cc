#include "src/kernels/attention_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "src/kernels/attention_library_cuda.h"
#include "tests/device/cuda_testing.h"
#include "tests/kernels/attention_testing.h"

namespace mneme {
namespace {

using testing::kInf;
using testing::kNaN;

// Sequences in pages on the host and on the device, in the same blocks.
struct Paged {
  AttentionShape shape;
  std::int32_t n_kv_heads, max_pages;
  std::vector<std::byte> memory;
  std::vector<std::int32_t> blocks;
  DeviceArray<std::byte> memory_there{0};
  DeviceArray<std::int32_t> blocks_there{0};
  static constexpr std::int32_t kLayers = 2, kLayer = 1;

  Paged(const AttentionShape& s, std::int32_t kv_heads, std::int32_t n_sequences, std::int32_t tokens, unsigned seed)
      : shape(s), n_kv_heads(kv_heads), max_pages((tokens + kKvPageTokens - 1) / kKvPageTokens + 1) {
    std::mt19937 rng(seed);
    const auto n = static_cast<std::size_t>(n_sequences) * static_cast<std::size_t>(stride());
    blocks.resize(n);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), rng);
    memory.resize(n * page_bytes());
    std::normal_distribution<float> normal;
    std::vector<float> numbers(4096);
    for (float& v : numbers) v = normal(rng);
    const auto d = static_cast<std::size_t>(shape.head_dim);
    std::vector<float> kv(2 * d);
    for (std::size_t at = 0; at < memory.size(); at += shape.token_bytes()) {
      for (float& v : kv) v = numbers[rng() % numbers.size()];
      store_kv(kv.data(), kv.data() + d, shape, memory.data() + at);
    }
    upload();
  }
  void upload() {
    memory_there = DeviceArray<std::byte>(std::span<const std::byte>(memory));
    blocks_there = DeviceArray<std::int32_t>(blocks);
  }
  std::size_t page_bytes() const { return kKvPageTokens * shape.token_bytes(); }
  std::int64_t stride() const { return std::int64_t{kLayers} * n_kv_heads * max_pages; }
  std::byte* token(std::int32_t sequence, std::int32_t head, std::int32_t position) {
    const auto entry = static_cast<std::size_t>(sequence * stride() + (kLayer * n_kv_heads + head) * max_pages +
                                                position / kKvPageTokens);
    return memory.data() + static_cast<std::size_t>(blocks[entry]) * page_bytes() +
           static_cast<std::size_t>(position % kKvPageTokens) * shape.token_bytes();
  }
  std::vector<KvRun> runs(std::int32_t sequence, std::int32_t head, std::int32_t begin, std::int32_t end) {
    std::vector<KvRun> r;
    for (std::int32_t at = begin; at < end; ++at) r.push_back({token(sequence, head, at), 1});
    return r;
  }
  KvTables tables() const {
    return {.base = memory_there.data(),
            .blocks = blocks_there.data(),
            .sequence_stride = stride(),
            .max_pages = max_pages,
            .n_kv_heads = n_kv_heads,
            .head_dim = shape.head_dim,
            .f16 = shape.kv_dtype == DType::kF16};
  }
};

AttentionShape shape_of(int group, int head_dim, DType dtype) {
  return {group, head_dim, dtype, 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

struct Queries {
  std::vector<float> values;  // as bf16 has them
  std::vector<std::uint16_t> bits;
  Queries(std::size_t n, unsigned seed, float sigma = 1.0f) {
    std::mt19937 rng(seed);
    for (const float v : testing::random_floats(n, rng, sigma)) {
      bits.push_back(bf16(v).bits);
      values.push_back(static_cast<float>(bf16(v)));
    }
  }
};

float value(std::uint16_t bits) {
  bf16 v;
  v.bits = bits;
  return static_cast<float>(v);
}

// The probabilities and the output are rounded to 2^-9 of themselves, and values are of size 1: twice that, and the sum
// of a few at the start of a long row.
void expect_close(std::span<const std::uint16_t> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double w = static_cast<double>(want[i]);
    ASSERT_LE(std::abs(static_cast<double>(value(got[i])) - w), 0.0078 + std::abs(w) * 0.0078)
        << i << " of " << got.size();
  }
}

class CudaAttentionTest : public CudaTest {
 protected:
  CudaContext context() const { return {.stream = stream.get()}; }

  struct Decoded {
    std::vector<std::uint16_t> out;
    std::vector<float> lse;
  };
  Decoded decode(const Paged& kv, const Queries& q, std::span<const std::int32_t> slots,
                 std::span<const std::int32_t> lengths, std::int32_t window = 0,
                 const std::vector<float>& log_weights = {}, std::int32_t lengths_per_head = 0) {
    return decode(kv, kv.tables(), Paged::kLayer, q, slots, lengths, window, log_weights, lengths_per_head);
  }
  Decoded decode(const Paged& kv, const KvTables& tables, std::int32_t layer, const Queries& q,
                 std::span<const std::int32_t> slots, std::span<const std::int32_t> lengths, std::int32_t window = 0,
                 const std::vector<float>& log_weights = {}, std::int32_t lengths_per_head = 0) {
    const auto n = static_cast<std::int32_t>(slots.size());
    const std::int32_t heads = kv.n_kv_heads * kv.shape.group;
    const DeviceArray<std::uint16_t> q_there(q.bits), out(q.bits.size());
    const DeviceArray<std::int32_t> slots_there(slots), lengths_there(lengths);
    const DeviceArray<float> lse(static_cast<std::size_t>(n * heads)), weights(log_weights);
    const DeviceArray<std::byte> scratch(decode_attention_scratch_bytes(n, kv.n_kv_heads, kv.shape.head_dim), 0);
    const DecodeAttentionCuda a{
        .q = q_there.data(),
        .slots = slots_there.data(),
        .lengths = lengths_there.data(),
        .length_stride = lengths_per_head > 0 ? kv.n_kv_heads : 1,
        .length_head_stride = lengths_per_head,
        .log_weights = log_weights.empty() ? nullptr : weights.data(),
        .log_weight_stride =
            log_weights.empty() ? 0 : static_cast<std::int64_t>(log_weights.size()) / (n * kv.n_kv_heads),
        .out = out.data(),
        .lse = lse.data(),
        .n = n,
        .n_heads = heads,
        .window = window,
        .scale = kv.shape.scale,
        .scratch = scratch.data()};
    attend_decode_cuda(a, tables, layer, context());
    const std::vector<std::uint16_t> first = out.get(stream);
    attend_decode_cuda(a, tables, layer, context());  // the scratch is as it was: the same again
    Decoded d{out.get(stream), lse.get(stream)};
    EXPECT_EQ(first, d.out);
    return d;
  }

  // Against the reference, head by head.
  void check_decode(Paged& kv, const Queries& q, std::span<const std::int32_t> slots,
                    std::span<const std::int32_t> lengths, std::int32_t window = 0,
                    const std::vector<float>& log_weights = {}, bool per_head = false) {
    const Decoded got = decode(kv, q, slots, lengths, window, log_weights, per_head ? 1 : 0);
    const std::size_t group_width = static_cast<std::size_t>(kv.shape.group * kv.shape.head_dim);
    const std::size_t weight_stride = log_weights.size() / (slots.size() * static_cast<std::size_t>(kv.n_kv_heads));
    for (std::size_t row = 0; row < slots.size(); ++row)
      for (std::int32_t head = 0; head < kv.n_kv_heads; ++head) {
        const std::size_t item = row * static_cast<std::size_t>(kv.n_kv_heads) + static_cast<std::size_t>(head);
        const std::int32_t length = lengths[per_head ? item : row];
        SCOPED_TRACE(::testing::Message() << "row " << row << ", head " << head << ", " << length << " tokens");
        const std::int32_t from = window > 0 ? std::max(0, length - window) : 0;
        const std::vector<KvRun> runs = kv.runs(slots[row], head, from, length);
        const DecodePart part{.q = q.values.data() + item * group_width,
                              .runs = runs,
                              .log_weight = log_weights.empty() ? nullptr
                                                                : log_weights.data() + item * weight_stride +
                                                                      static_cast<std::size_t>(from)};
        std::vector<float> out(group_width), lse(static_cast<std::size_t>(kv.shape.group));
        const DecodeHead one{.parts = std::span(&part, 1), .out = out.data(), .lse = lse.data()};
        attend_decode_ref(std::span(&one, 1), kv.shape);
        expect_close(std::span(got.out).subspan(item * group_width, group_width), out);
        for (std::size_t g = 0; g < lse.size(); ++g) {
          const float l = got.lse[item * lse.size() + g];
          if (lse[g] == -kInf) {
            ASSERT_EQ(l, -kInf);
          } else {
            ASSERT_LE(std::abs(l - lse[g]), 2e-3f);
          }
        }
      }
  }
};

TEST_F(CudaAttentionTest, DecodesEveryGroupAndLength) {
  for (const std::int32_t head_dim : attention_head_dims_cuda())
    for (const int group : {1, 4, 5, 7, 8, 16})
      for (const DType type : {DType::kBF16, DType::kF16}) {
        SCOPED_TRACE(::testing::Message() << "D " << head_dim << ", group " << group << " " << dtype_name(type));
        Paged kv(shape_of(group, head_dim, type), 2, 3, 300, 1);
        const std::vector<std::int32_t> slots = {2, 0, 1, 0, 2, 1, 0}, lengths = {0, 1, 31, 32, 33, 257, 300};
        const Queries q(slots.size() * 2 * static_cast<std::size_t>(group * head_dim), 2);
        check_decode(kv, q, slots, lengths);
      }
}

TEST_F(CudaAttentionTest, DecodesLongContextsInStretches) {
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

TEST_F(CudaAttentionTest, DecodesWindowsWeightsAndLengthsPerHead) {
  Paged kv(shape_of(4, 128, DType::kBF16), 2, 2, 700, 6);
  const std::vector<std::int32_t> slots = {0, 1, 1}, lengths = {700, 20, 333};
  const Queries q(3 * 8 * 128, 7);
  for (const std::int32_t window : {1, 31, 64, 100, 1000}) check_decode(kv, q, slots, lengths, window);
  std::mt19937 rng(8);
  const std::vector<float> weights = testing::random_floats(3 * 2 * 704, rng, 2.0f);
  check_decode(kv, q, slots, lengths, 0, weights);
  const std::vector<std::int32_t> per_head = {700, 3, 0, 64, 333, 320};
  check_decode(kv, q, slots, per_head, 0, {}, true);
}

TEST_F(CudaAttentionTest, LargeScoresAndNaNStayWhereTheyAre) {
  Paged kv(shape_of(4, 128, DType::kBF16), 2, 1, 500, 9);
  check_decode(kv, Queries(8 * 128, 10, 300.0f), std::array{0}, std::array{500});
  const Queries q(8 * 128, 11);
  const Decoded clean = decode(kv, q, std::array{0}, std::array{500});
  testing::set_kv(kv.token(0, 1, 250), 3, DType::kBF16, kNaN);
  testing::set_kv(kv.token(0, 0, 500), 3, DType::kBF16, kNaN);  // behind the last token: not read
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

TEST_F(CudaAttentionTest, PrefillsChunksAfterEarlierPages) {
  LibraryAttention library;
  for (const std::int32_t head_dim : attention_head_dims_cuda())
    for (const int group : {1, 4, 7}) {
      Paged kv(shape_of(group, head_dim, DType::kBF16), 2, 2, 1100, 12);
      library.prepare(2 * group, kv.tables(), 1100);
      const auto width = static_cast<std::size_t>(2 * group * head_dim);
      for (const auto& [first, n_rows, window] :
           {std::array{0, 1, 0}, std::array{0, 33, 0}, std::array{0, 300, 0}, std::array{31, 129, 0},
            std::array{700, 400, 0}, std::array{1000, 16, 0}, std::array{100, 260, 50}, std::array{0, 200, 32}}) {
        SCOPED_TRACE(::testing::Message() << "D " << head_dim << ", group " << group << ": " << n_rows << " after "
                                          << first << ", window " << window);
        const Queries q(static_cast<std::size_t>(n_rows) * width, 13);
        std::vector<float> want(q.values.size()), lse(static_cast<std::size_t>(n_rows * 2 * group));
        for (std::int32_t head = 0; head < 2; ++head) {
          const std::vector<KvRun> runs = kv.runs(1, head, 0, first + n_rows);
          const PrefillPart part{.q = q.values.data() + head * group * head_dim,
                                 .q_stride = static_cast<std::int64_t>(width),
                                 .runs = runs,
                                 .causal = true,
                                 .window = window};
          const PrefillHead one{.parts = std::span(&part, 1),
                                .n_rows = n_rows,
                                .out = reinterpret_cast<std::byte*>(want.data() + head * group * head_dim),
                                .out_stride = static_cast<std::int64_t>(width)};
          attend_prefill_ref(std::span(&one, 1), kv.shape);
        }
        const DeviceArray<std::uint16_t> q_there(q.bits), out(q.bits.size());
        const PrefillAttentionCuda a{.q = q_there.data(),
                                     .out = out.data(),
                                     .slot = 1,
                                     .first = first,
                                     .n_rows = n_rows,
                                     .n_heads = 2 * group,
                                     .window = window,
                                     .scale = kv.shape.scale};
        attend_prefill_cuda(a, kv.tables(), Paged::kLayer, context());
        expect_close(out.get(stream), want);
        const DeviceArray<std::uint16_t> out2(q.bits.size());
        PrefillAttentionCuda by_library = a;
        by_library.out = out2.data();
        if (library.attend(by_library, kv.tables(), Paged::kLayer, context())) {
          SCOPED_TRACE("the library's kernel");
          expect_close(out2.get(stream), want);
        }
      }
    }
}

// A table of single tokens: the same bits as the pages that hold them in this order, and any others as well.
TEST_F(CudaAttentionTest, TokensAreWhatTheirPagesAre) {
  for (const int head_dim : {64, 128})
    for (const int group : {1, 4, 7, 16}) {
      SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << ", group " << group);
      const std::vector<std::int32_t> slots = {2, 0, 1, 0}, lengths = {2101, 64, 33, 1};
      Paged kv(shape_of(group, head_dim, group == 4 ? DType::kF16 : DType::kBF16), 3, 3, 2200, 5);
      const Queries q(slots.size() * static_cast<std::size_t>(3 * group * head_dim), 6);
      const std::int32_t most = kv.max_pages * kKvPageTokens;
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(3 * 3 * most));  // [sequences][KV heads][most]
      const auto number = [&](std::int32_t sequence, std::int32_t head, std::int32_t position) {
        return static_cast<std::int32_t>((kv.token(sequence, head, position) - kv.memory.data()) /
                                         static_cast<std::ptrdiff_t>(kv.shape.token_bytes()));
      };
      const auto table = [&](auto&& position_of) {
        for (std::int32_t i = 0; i < 9 * most; ++i)
          tokens[static_cast<std::size_t>(i)] = number(i / most / 3, i / most % 3, position_of(i % most));
        return DeviceArray<std::int32_t>(tokens);
      };
      KvTables of_tokens = kv.tables();
      of_tokens.of_tokens = true, of_tokens.max_pages = most, of_tokens.sequence_stride = 3 * most;
      const DeviceArray<std::int32_t> same = table([](std::int32_t i) { return i; });
      of_tokens.blocks = same.data();
      const Decoded want = decode(kv, q, slots, lengths), got = decode(kv, of_tokens, 0, q, slots, lengths);
      EXPECT_EQ(got.out, want.out);
      EXPECT_EQ(got.lse, want.lse);
      // Every third token.
      const DeviceArray<std::int32_t> third = table([&](std::int32_t i) { return i * 3 % most; });
      of_tokens.blocks = third.data();
      const std::vector<std::int32_t> few = {700, 65, 31, 1};
      const Decoded listed = decode(kv, of_tokens, 0, q, slots, few);
      const auto width = static_cast<std::size_t>(group * head_dim);
      for (std::size_t row = 0; row < slots.size(); ++row)
        for (std::int32_t head = 0; head < 3; ++head) {
          std::vector<KvRun> runs;
          for (std::int32_t i = 0; i < few[row]; ++i) runs.push_back({kv.token(slots[row], head, i * 3 % most), 1});
          const std::size_t item = row * 3 + static_cast<std::size_t>(head);
          const DecodePart part{.q = q.values.data() + item * width, .runs = runs};
          std::vector<float> out(width), lse(static_cast<std::size_t>(group));
          const DecodeHead one{.parts = std::span(&part, 1), .out = out.data(), .lse = lse.data()};
          attend_decode_ref(std::span(&one, 1), kv.shape);
          expect_close(std::span(listed.out).subspan(item * width, width), out);
        }
    }
}

}  // namespace
}  // namespace mneme
