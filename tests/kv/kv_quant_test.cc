// Keys and values in 8 bits: codes and scales against the plain form, errors against f64.
#include "src/kv/kv_quant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/rng.h"
#include "src/kv/sequence_cache.h"
#include "src/tensor/half_value.h"
#include "tests/ops/simd/each_target.h"

namespace mneme {
namespace {

class KvQuant : public ::testing::TestWithParam<DType> {
 protected:
  struct Row {
    std::vector<std::byte> codes, values;
    float scale = 0;
  };
  Row row_of(const std::vector<float>& x) const {
    const std::int32_t d = static_cast<std::int32_t>(x.size());
    Row r{.codes = std::vector<std::byte>(x.size()), .values = std::vector<std::byte>(2 * x.size())};
    r.scale = quantise_row_cpu(x.data(), d, GetParam(), r.codes.data());
    widen_row_ref(r.codes.data(), d, r.scale, GetParam(), r.values.data());
    return r;
  }
};

// Normal numbers of a row's own size, some with an element that is much larger.
std::vector<float> random_row(std::int32_t d, Rng& rng) {
  std::vector<float> x(d);
  const double size = std::exp2(40 * rng.uniform() - 20);
  for (float& v : x) v = static_cast<float>(size * rng.normal());
  if (rng.below(2) == 0) x[rng.below(d)] *= 50.0f;
  if (rng.below(3) == 0) x[rng.below(d)] = 0.0f;
  return x;
}

TEST_P(KvQuant, CodesAndScalesAreThoseOfThePlainFormOnEveryInstructionSet) {
  each_target([&] {
    Rng rng(1);
    for (const std::int32_t d : {8, 24, 64, 80, 128, 256})
      for (int i = 0; i < 40; ++i) {
        const std::vector<float> x = random_row(d, rng);
        std::vector<std::byte> expected(d);
        const float scale = quantise_row_ref(x.data(), d, GetParam(), expected.data());
        const Row r = row_of(x);
        ASSERT_EQ(r.scale, scale);
        ASSERT_EQ(r.codes, expected) << "D " << d;
      }
  });
}

// The value of code 0 to 126 of e4m3: multiples of 2^-9 below 2^-6, then eighths of powers of two.
float e4m3(int code) {
  const int exponent = code >> 3, fraction = code & 7;
  return exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                       : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
}

// The scale is 1, and every element lies in the middle between two neighbours: the even code is taken.
TEST_P(KvQuant, TiesGoToTheEvenCode) {
  const bool fp8 = GetParam() == DType::kFp8;
  std::vector<float> x = {fp8 ? 448.0f : 127.0f};
  std::vector<int> expected = {fp8 ? 126 : 127};
  for (int code = 0; code < (fp8 ? 126 : 127); ++code) {
    const float middle = fp8 ? (e4m3(code) + e4m3(code + 1)) / 2 : static_cast<float>(code) + 0.5f;
    const int even = code + code % 2;
    x.insert(x.end(), {middle, -middle});
    expected.insert(expected.end(), {even, fp8 ? even + 128 : -even});
  }
  while (x.size() % 8 != 0) x.push_back(0.0f), expected.push_back(0);
  const auto d = static_cast<std::int32_t>(x.size());
  std::vector<std::byte> codes(x.size());
  EXPECT_EQ(quantise_row_ref(x.data(), d, GetParam(), codes.data()), 1.0f);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(codes[i], static_cast<std::byte>(expected[i])) << x[i];
  each_target([&] {
    ASSERT_EQ(row_of(x).scale, 1.0f);
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(row_of(x).codes[i], static_cast<std::byte>(expected[i])) << x[i];
  });
}

TEST_P(KvQuant, ErrorsStayBelowTheBound) {
  Rng rng(2);
  for (int i = 0; i < 400; ++i) {
    const std::vector<float> x = random_row(64, rng);
    const Row r = row_of(x);
    for (std::size_t c = 0; c < x.size(); ++c) {
      const double value = load_half(r.values.data(), static_cast<std::int64_t>(c), DType::kBF16), exact = x[c];
      const double step = GetParam() == DType::kInt8 ? r.scale / 2 : std::max(std::abs(exact) / 16, r.scale / 1024.0);
      ASSERT_LE(std::abs(value - exact), step * (1 + 0x1p-8) + std::abs(value) / 256) << exact;
    }
  }
}

TEST_P(KvQuant, TheLargestElementIsExactToBf16) {
  Rng rng(3);
  for (int i = 0; i < 100; ++i) {
    std::vector<float> x = random_row(32, rng);
    const std::size_t at = rng.below(32);
    x[at] = 3000.0f * static_cast<float>(std::exp2(30));
    const Row r = row_of(x);
    EXPECT_EQ(load_half(r.values.data(), static_cast<std::int64_t>(at), DType::kBF16), static_cast<float>(bf16(x[at])));
  }
}

TEST_P(KvQuant, RowsThatAreNotFiniteReadAsNaN) {
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
    for (const std::size_t at : {0u, 7u, 15u}) {
      std::vector<float> x(16, 1.0f);
      x[at] = odd;
      const Row r = row_of(x);
      for (std::int64_t c = 0; c < 16; ++c) EXPECT_TRUE(std::isnan(load_half(r.values.data(), c, DType::kBF16)));
    }
}

TEST_P(KvQuant, RowsOfZerosAndOfTinyNumbersReadAsZero) {
  for (const float tiny : {0.0f, 1e-38f, std::numeric_limits<float>::denorm_min()}) {
    const Row r = row_of(std::vector<float>(16, tiny));
    for (std::int64_t c = 0; c < 16; ++c) EXPECT_EQ(load_half(r.values.data(), c, DType::kBF16), 0.0f);
  }
}

TEST_P(KvQuant, TheLargestNumbersOfF32DoNotOverflow) {
  std::vector<float> x(8, 0.0f);
  x[3] = 3.3e38f;
  x[4] = -3.3e38f;
  const Row r = row_of(x);
  EXPECT_NEAR(load_half(r.values.data(), 3, DType::kBF16) / 3.3e38, 1.0, 0.004);
  EXPECT_NEAR(load_half(r.values.data(), 4, DType::kBF16) / -3.3e38, 1.0, 0.004);
}

TEST_P(KvQuant, ReadersOfTokensAndOfElementsSeeTheSame) {
  each_target([&] {
    Rng rng(4);
    for (const std::int32_t d : {8, 40, 64, 128}) {
      const AttentionShape shape{.head_dim = d, .kv_dtype = GetParam()};
      std::vector<std::byte> pages(5 * shape.token_bytes());
      std::vector<KvRun> runs;
      for (int t = 0; t < 5; ++t) {
        const std::vector<float> k = random_row(d, rng), v = random_row(d, rng);
        store_kv(k.data(), v.data(), shape, pages.data() + t * shape.token_bytes());
      }
      runs.push_back({pages.data(), 2});
      runs.push_back({pages.data() + 2 * shape.token_bytes(), 3});
      Buffer scratch;
      const WideTokens wide(runs, shape, scratch);
      ASSERT_EQ(wide.shape().kv_dtype, DType::kBF16);
      ASSERT_EQ(wide.runs().size(), 1u);
      ASSERT_EQ(wide.runs()[0].n_tokens, 5);
      for (int t = 0; t < 5; ++t)
        for (std::int32_t i = 0; i < 2 * d; ++i)
          ASSERT_EQ(load_half(wide.runs()[0].kv + t * wide.shape().token_bytes(), i, DType::kBF16),
                    load_kv(pages.data() + t * shape.token_bytes(), i, GetParam(), d));
    }
  });
}

TEST_P(KvQuant, KeysAloneAreTheSameKeys) {
  const AttentionShape shape{.head_dim = 64, .kv_dtype = GetParam()};
  Rng rng(5);
  const std::vector<float> k = random_row(64, rng), v = random_row(64, rng);
  std::vector<std::byte> token(shape.token_bytes());
  store_kv(k.data(), v.data(), shape, token.data());
  const KvRun run{token.data(), 1};
  Buffer all, keys;
  const WideTokens a({&run, 1}, shape, all), b({&run, 1}, shape, keys, KvPart::kKeys);
  EXPECT_EQ(std::memcmp(a.runs()[0].kv, b.runs()[0].kv, 128), 0);
}

TEST_P(KvQuant, RunsIn16BitsAreTakenAsTheyAre) {
  const std::vector<std::byte> page(256);
  const KvRun run{page.data(), 4};
  Buffer scratch;
  const WideTokens wide({&run, 1}, {.head_dim = 16, .kv_dtype = DType::kF16}, scratch);
  EXPECT_EQ(wide.runs().data(), &run);
  EXPECT_EQ(wide.shape().kv_dtype, DType::kF16);
  EXPECT_EQ(scratch.size(), 0u);
}

TEST_P(KvQuant, AForkCopiesTheOpenPageWithItsScales) {
  const KvShape shape{1, 1, 16, GetParam()};
  const AttentionShape tokens{.head_dim = 16, .kv_dtype = GetParam()};
  EXPECT_EQ(shape.page_bytes(), 32u * (2 * 16 + 8));
  PagePool pool(shape, 8);
  SequenceCache a(pool);
  Rng rng(6);
  a.extend(5);
  for (std::int32_t t = 0; t < 5; ++t) {
    const std::vector<float> k = random_row(16, rng), v = random_row(16, rng);
    store_kv(k.data(), v.data(), tokens, a.token(0, 0, t));
  }
  SequenceCache b = a.fork();
  b.extend(1);
  ASSERT_NE(a.token(0, 0, 0), b.token(0, 0, 0));
  EXPECT_EQ(std::memcmp(a.token(0, 0, 0), b.token(0, 0, 0), 5 * shape.token_bytes()), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, KvQuant, ::testing::Values(DType::kInt8, DType::kFp8),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

}  // namespace
}  // namespace mneme
