#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/ops/attention/attention.h"
#include "tests/ops/attention/attention_testing.h"

namespace mneme {
namespace {

using namespace testing;

struct Part {
  KvStore kv;
  std::vector<float> q;
  std::vector<float> log_weight;  // empty: none
};

struct Case {
  AttentionShape shape;
  std::vector<std::vector<Part>> heads;
  std::vector<float> sinks = {};  // [G]; empty: none
};

AttentionShape shape_of(int group, int head_dim, DType dtype) {
  return {group, head_dim, dtype, 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

struct Outputs {
  std::vector<std::vector<float>> out, lse;
};

using Attend = FunctionRef<void(std::span<const DecodeHead>, const AttentionShape&)>;

Outputs attend(const Case& c, Attend form) {
  Outputs o;
  std::vector<std::vector<DecodePart>> parts(c.heads.size());
  std::vector<DecodeHead> heads;
  const std::size_t group = c.shape.group;
  o.out.assign(c.heads.size(), std::vector<float>(group * c.shape.head_dim, kNaN));
  o.lse.assign(c.heads.size(), std::vector<float>(group, kNaN));
  for (std::size_t h = 0; h < c.heads.size(); ++h) {
    for (const Part& p : c.heads[h])
      parts[h].push_back({p.q.data(), p.kv.runs, p.log_weight.empty() ? nullptr : p.log_weight.data()});
    heads.push_back({parts[h], o.out[h].data(), o.lse[h].data(), c.sinks.empty() ? nullptr : c.sinks.data()});
  }
  form(heads, c.shape);
  return o;
}

Outputs attend_fast(const Case& c, int n_threads) {
  ThreadPool pool(n_threads);
  return attend(c, [&](auto heads, const AttentionShape& s) { attend_decode_cpu(heads, s, {&pool, Rounding::kFast}); });
}

std::vector<float> plain(const std::vector<Part>& parts, const AttentionShape& shape) {
  const std::size_t d = shape.head_dim;
  std::vector<float> out(shape.group * d);
  for (std::size_t g = 0; g < static_cast<std::size_t>(shape.group); ++g) {
    std::vector<Entry> entries;
    for (const Part& p : parts)
      for (std::size_t t = 0; t < p.kv.tokens.size(); ++t)
        entries.push_back({p.q.data() + g * d, p.kv.tokens[t], p.log_weight.empty() ? 0.0f : p.log_weight[t]});
    plain_attend(entries, shape, Arithmetic::kF32, out.data() + g * d);
  }
  return out;
}

struct Expected {
  Outputs want;
  std::vector<double> tolerance;  // per head
};

// Twice the error of plain f32. The floor is the rounding of a value of that size, for cases so small that plain f32 is
// exact by luck.
Expected expected(const Case& c) {
  Expected e{attend(c, [](auto heads, const AttentionShape& s) { attend_decode_ref(heads, s); }), {}};
  for (std::size_t h = 0; h < c.heads.size(); ++h)
    e.tolerance.push_back(2 * max_error(plain(c.heads[h], c.shape), e.want.out[h]) + 4e-7 * max_abs(e.want.out[h]));
  return e;
}

void expect_close(const Expected& e, const Outputs& got) {
  for (std::size_t h = 0; h < e.tolerance.size(); ++h) {
    EXPECT_LE(max_error(got.out[h], e.want.out[h]), e.tolerance[h]) << "head " << h;
    for (std::size_t g = 0; g < e.want.lse[h].size(); ++g) {
      const float want = e.want.lse[h][g];
      if (std::isinf(want)) {
        EXPECT_EQ(got.lse[h][g], want) << "head " << h << " query " << g;
      } else {
        EXPECT_LE(std::abs(got.lse[h][g] - want), 2e-6f * std::max(1.0f, std::abs(want)))
            << "head " << h << " query " << g;
      }
    }
  }
}

void expect_close_everywhere(const Case& c, const std::vector<int>& threads = {2}) {
  const Expected e = expected(c);
  each_supported_target([&] {
    for (const int n_threads : threads) expect_close(e, attend_fast(c, n_threads));
  });
}

Part make_part(int n_tokens, const AttentionShape& shape, Layout layout, std::mt19937& rng, float sigma = 1.0f) {
  return {KvStore(n_tokens, shape, layout, rng, sigma), random_floats(shape.group * shape.head_dim, rng, sigma), {}};
}

Case make_case(const std::vector<int>& lengths, AttentionShape shape, Layout layout, unsigned seed = 1,
               float sigma = 1.0f) {
  std::mt19937 rng(seed);
  Case c{shape, {}};
  for (const int n : lengths) {
    c.heads.emplace_back();
    c.heads.back().push_back(make_part(n, shape, layout, rng, sigma));
  }
  return c;
}

TEST(AttentionDecode, LengthsAroundTilesAndRanges) {
  const AttentionShape shape = shape_of(4, 64, DType::kBF16);
  for (const Layout layout : {Layout::kPages, Layout::kSingles, Layout::kRagged, Layout::kOneRun}) {
    const Case c =
        make_case({0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 97, 1025, 2047, 2048, 2049, 4100}, shape, layout);
    expect_close_everywhere(c);
  }
}

TEST(AttentionDecode, SinksAreOneMoreLogitBehindTheMergeOfAllSplits) {
  Case c = make_case({0, 1, 33, 2049, 4100}, shape_of(5, 64, DType::kBF16), Layout::kPages);
  const Case without = c;
  c.sinks = {-kInf, -3.0f, 0.5f, 20.0f, 200.0f};
  const Outputs all = attend(c, [](auto heads, const AttentionShape& s) { attend_decode_ref(heads, s); });
  const Outputs none = attend(without, [](auto heads, const AttentionShape& s) { attend_decode_ref(heads, s); });
  for (std::size_t h = 0; h < c.heads.size(); ++h)
    for (std::size_t g = 0; g < 5; ++g) {
      const double share = 1.0 / (1.0 + std::exp(double{c.sinks[g]} - none.lse[h][g]));
      for (std::size_t d = 0; d < 64 && std::isfinite(none.lse[h][g]); ++d)
        ASSERT_NEAR(all.out[h][g * 64 + d], share * none.out[h][g * 64 + d], 1e-6);
    }
  EXPECT_EQ(all.lse[0], c.sinks) << "no tokens: the sink alone";
  // Heads whose attention the sink takes are compared by what there was without it.
  Expected e{all, expected(without).tolerance};
  each_supported_target([&] { expect_close(e, attend_fast(c, 2)); });
}

TEST(AttentionDecode, GroupsAndHeadDims) {
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16})
      for (const int head_dim : {8, 16, 24, 40, 64, 80, 96, 128, 256}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " group " << group << " head_dim " << head_dim);
        const Case c = make_case({1, 37, 131}, shape_of(group, head_dim, dtype), Layout::kRagged);
        expect_close_everywhere(c, {1});
      }
}

TEST(AttentionDecode, PartsWithTheirOwnQueriesAndWeights) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const AttentionShape shape = shape_of(5, 64, dtype);
    std::mt19937 rng(7);
    Case c{shape, {}};
    for (const std::vector<int>& lengths :
         {std::vector<int>{4, 0, 1000, 7}, {0, 0}, {}, {1, 1, 1}, {1024, 1024, 3}, {2049, 2047}}) {
      c.heads.emplace_back();
      for (const int n : lengths) {
        Part p = make_part(n, shape, Layout::kRagged, rng);
        if (n % 2 == 1) p.log_weight = random_floats(n, rng, 3.0f);
        if (n > 5 && n % 2 == 1) p.log_weight[4] = -kInf;
        c.heads.back().push_back(std::move(p));
      }
    }
    expect_close_everywhere(c, {1, 2, 3, 4});
  }
}

TEST(AttentionDecode, WeightMinusInfinityEverywhereIsNoEntry) {
  Case c = make_case({40, 40, 2100}, shape_of(4, 32, DType::kBF16), Layout::kPages);
  for (auto& head : c.heads) head[0].log_weight.assign(head[0].kv.tokens.size(), -kInf);
  c.heads[1][0].log_weight[39] = -2.0f;   // only the last
  c.heads[2][0].log_weight[2050] = 0.5f;  // a whole KV split before it has weight 0
  expect_close_everywhere(c);
  each_supported_target([&] {
    const Outputs got = attend_fast(c, 2);
    EXPECT_THAT(got.out[0], ::testing::Each(0.0f));
    EXPECT_THAT(got.lse[0], ::testing::Each(-kInf));
  });
}

TEST(AttentionDecode, EqualScoresGiveTheMean) {
  Case c = make_case({2500}, shape_of(4, 64, DType::kBF16), Layout::kPages);
  std::fill(c.heads[0][0].q.begin(), c.heads[0][0].q.end(), 0.0f);
  expect_close_everywhere(c);
  each_supported_target([&] { EXPECT_NEAR(attend_fast(c, 2).lse[0][2], std::log(2500.0f), 1e-5f); });
}

TEST(AttentionDecode, HugeScores) {
  // Scores of about +- 1e4: one or two entries dominate, the rest underflow.
  const Case c = make_case({33, 700, 2500}, shape_of(4, 64, DType::kBF16), Layout::kRagged, 3, 60.0f);
  expect_close_everywhere(c);
}

TEST(AttentionDecode, NaNStaysInItsQuery) {
  each_supported_target([&] {
    for (const int at : {0, 5, 36, 2060}) {
      Case c = make_case({2100, 2100}, shape_of(4, 64, DType::kBF16), Layout::kPages);
      const Outputs clean = attend_fast(c, 2);
      c.heads[0][0].q[64 + 3] = kNaN;                              // head 0, query 1
      set_kv(c.heads[1][0].kv.tokens[at], 3, DType::kBF16, kNaN);  // a key: all of head 1
      const Outputs got = attend_fast(c, 2);
      for (std::size_t i = 0; i < 256; ++i) {
        EXPECT_EQ(std::isnan(got.out[0][i]), i / 64 == 1) << i;
        if (i / 64 != 1) {
          EXPECT_EQ(got.out[0][i], clean.out[0][i]) << i;
        }
        EXPECT_TRUE(std::isnan(got.out[1][i])) << i;
      }
      EXPECT_TRUE(std::isnan(got.lse[0][1]));
      EXPECT_FALSE(std::isnan(got.lse[0][0]));
    }
  });
}

TEST(AttentionDecode, OtherHeadsThreadsAndRoundingChangeNoBits) {
  each_supported_target([&] {
    const Case all = make_case({3000, 17, 2048, 5000, 1}, shape_of(7, 64, DType::kBF16), Layout::kPages);
    const Outputs want = attend_fast(all, 1);
    for (const int n_threads : {2, 3, 4}) {
      const Outputs got = attend_fast(all, n_threads);
      for (std::size_t h = 0; h < all.heads.size(); ++h) EXPECT_TRUE(same_bits(got.out[h], want.out[h])) << h;
    }
    Case alone = make_case({3000}, all.shape, Layout::kPages);  // the same seed, so the same first head
    ThreadPool pool(2);
    const Outputs got = attend(alone, [&](auto heads, const AttentionShape& s) {
      attend_decode_cpu(heads, s, {&pool, Rounding::kFixed});
    });
    EXPECT_TRUE(same_bits(got.out[0], want.out[0]));
    EXPECT_TRUE(same_bits(got.lse[0], want.lse[0]));
  });
}

TEST(AttentionDecode, MoreThan6144Pages) {
  const Case c = make_case({6145 * 32 + 1}, shape_of(1, 8, DType::kBF16), Layout::kPages);
  expect_close_everywhere(c);
}

TEST(AttentionDecodeCall, NoHeadsAndNoLse) {
  ThreadPool pool(2);
  const AttentionShape shape = shape_of(4, 64, DType::kBF16);
  attend_decode_cpu({}, shape, {&pool, Rounding::kFast});
  std::vector<float> out(256, kNaN);
  const DecodeHead head{{}, out.data(), nullptr};
  attend_decode_cpu({&head, 1}, shape, {&pool, Rounding::kFast});
  EXPECT_THAT(out, ::testing::Each(0.0f));
}

TEST(StoreKv, RoundsToNearestEven) {
  const AttentionShape bf = shape_of(1, 8, DType::kBF16);
  const std::vector<float> k = {1.0f, 1.00390625f, 1.01171875f, -0.0f, kInf, 65504.0f, 1e-40f, -3.14159f};
  const std::vector<float> v(8, 2.0f);
  std::byte token[32];
  store_kv(k.data(), v.data(), bf, token);
  EXPECT_EQ(kv_at(token, 1, DType::kBF16), 1.0f);       // a tie, to even
  EXPECT_EQ(kv_at(token, 2, DType::kBF16), 1.015625f);  // a tie, to even
  EXPECT_EQ(kv_at(token, 4, DType::kBF16), kInf);
  for (std::size_t i = 8; i < 16; ++i) EXPECT_EQ(kv_at(token, i, DType::kBF16), 2.0f);
  AttentionShape h = bf;
  h.kv_dtype = DType::kF16;
  store_kv(k.data(), v.data(), h, token);
  EXPECT_EQ(kv_at(token, 1, DType::kF16), 1.00390625f);
  EXPECT_EQ(kv_at(token, 5, DType::kF16), 65504.0f);
}

}  // namespace
}  // namespace mneme
