#include "src/selection/mass/attention_mass.h"

#include <gtest/gtest.h>

#include "src/base/thread_pool.h"
#include "src/ops/attention/attention.h"
#include "tests/ops/attention/attention_testing.h"

namespace mneme {
namespace {

using testing::KvStore;
using testing::Layout;

struct Case {
  AttentionShape shape;
  std::int32_t n_tokens, n_rows;
  KvStore keys;
  std::vector<float> q, lse;

  Case(const AttentionShape& s, std::int32_t tokens, std::int32_t rows, Layout layout, std::mt19937& rng)
      : shape(s),
        n_tokens(tokens),
        n_rows(rows),
        keys(tokens, s, layout, rng),
        q(testing::random_floats(rows * s.group * s.head_dim, rng)) {
    // As attention itself returns it.
    lse.resize(rows * s.group);
    std::vector<float> out(q.size());
    const PrefillPart part{.q = q.data(), .q_stride = s.group * s.head_dim, .runs = keys.runs};
    const PrefillHead head{.parts = std::span(&part, 1),
                           .n_rows = rows,
                           .out = reinterpret_cast<std::byte*>(out.data()),
                           .out_stride = s.group * s.head_dim,
                           .lse = lse.data()};
    attend_prefill_ref(std::span(&head, 1), s);
  }
  MassHead head(std::vector<float>& mass) const {
    return {.q = q.data(),
            .q_stride = shape.group * shape.head_dim,
            .lse = lse.data(),
            .lse_stride = shape.group,
            .n_rows = n_rows,
            .runs = keys.runs,
            .mass = mass.data(),
            .mass_stride = n_tokens};
  }
  std::vector<float> zeros(MassBy by) const {
    return std::vector<float>(n_tokens * (by == MassBy::kGroup ? 1 : shape.group), 0.0f);
  }
};

AttentionShape shape_of(std::int32_t group, std::int32_t dim, DType dtype) {
  return {.group = group, .head_dim = dim, .kv_dtype = dtype, .scale = 1.0f / std::sqrt(static_cast<float>(dim))};
}

TEST(AttentionMassRef, EveryRowGivesOneAndNothingToTokensAfterIt) {
  std::mt19937 rng(1);
  const Case c(shape_of(3, 16, DType::kBF16), 50, 20, Layout::kRagged, rng);
  std::vector<float> by_head = c.zeros(MassBy::kQueryHead), all = c.zeros(MassBy::kGroup);
  const MassHead heads[] = {c.head(by_head)}, group[] = {c.head(all)};
  attention_mass_ref(heads, c.shape, MassBy::kQueryHead);
  attention_mass_ref(group, c.shape, MassBy::kGroup);
  for (int g = 0; g < 3; ++g) {
    double sum = 0;
    for (int t = 0; t < 50; ++t) sum += by_head[g * 50 + t];
    EXPECT_NEAR(sum, 20.0, 1e-4);
  }
  for (std::size_t t = 0; t < 50; ++t) EXPECT_NEAR(all[t], by_head[t] + by_head[50 + t] + by_head[100 + t], 1e-5);
  EXPECT_LE(all[49], 3.0f) << "only the last row sees the last token";
}

TEST(AttentionMassCpu, IsTheReference) {
  ThreadPool pool(2);
  const CpuContext context{.pool = &pool};
  std::mt19937 rng(2);
  for (const auto& [group, dim] : {std::pair{1, 64}, {4, 64}, {5, 8}, {7, 24}, {8, 128}, {16, 256}})
    for (const auto& [tokens, rows] :
         {std::pair{1, 1}, {31, 1}, {64, 64}, {65, 3}, {97, 16}, {130, 130}, {200, 33}, {2100, 2}})
      for (const MassBy by : {MassBy::kQueryHead, MassBy::kGroup}) {
        if (dim == 256 && tokens > 200) continue;
        const Case c(shape_of(group, dim, group % 2 == 0 ? DType::kBF16 : DType::kF16), tokens, rows,
                     static_cast<Layout>(rng() % 4), rng);
        std::vector<float> before = c.zeros(by);
        for (std::size_t t = 0; t < before.size(); ++t) before[t] = static_cast<float>(t % 3);  // added to
        std::vector<float> expected = before;
        const MassHead reference[] = {c.head(expected)};
        attention_mass_ref(reference, c.shape, by);
        testing::each_supported_target([&] {
          std::vector<float> actual = before;
          const MassHead head[] = {c.head(actual)};
          attention_mass_cpu(head, c.shape, by, context);
          for (std::size_t t = 0; t < actual.size(); ++t)
            ASSERT_LE(std::abs(actual[t] - expected[t]), 2e-6f * (1.0f + expected[t]))
                << "G " << group << " D " << dim << " M " << tokens << " rows " << rows << " at " << t;
        });
      }
}

// Rows that attend only the last tokens; each row's mass sums to 1.
TEST(AttentionMassCpu, Windows) {
  ThreadPool pool(2);
  std::mt19937 rng(4);
  testing::each_supported_target([&] {
    for (const std::int32_t window : {1, 5, 64, 70, 1000})
      for (const auto& [tokens, rows] : {std::pair{40, 40}, {150, 64}, {300, 3}, {2100, 1}}) {
        Case c(shape_of(4, 16, DType::kF16), tokens, rows, Layout::kPages, rng);
        const PrefillPart part{.q = c.q.data(), .q_stride = 64, .runs = c.keys.runs, .window = window};
        std::vector<float> out(c.q.size());
        const PrefillHead head{.parts = std::span(&part, 1),
                               .n_rows = rows,
                               .out = reinterpret_cast<std::byte*>(out.data()),
                               .out_stride = 64,
                               .lse = c.lse.data()};
        attend_prefill_ref(std::span(&head, 1), c.shape);
        std::vector<float> expected = c.zeros(MassBy::kQueryHead), actual = expected;
        MassHead a = c.head(expected), b = c.head(actual);
        a.window = b.window = window;
        attention_mass_ref(std::span(&a, 1), c.shape, MassBy::kQueryHead);
        attention_mass_cpu(std::span(&b, 1), c.shape, MassBy::kQueryHead, {.pool = &pool});
        double sum = 0;
        for (std::size_t t = 0; t < actual.size(); ++t) {
          ASSERT_LE(std::abs(actual[t] - expected[t]), 2e-6f * (1.0f + expected[t])) << tokens << " " << window;
          sum += actual[t];
        }
        EXPECT_NEAR(sum, 4.0 * rows, 1e-3);
      }
  });
}

TEST(AttentionMassCpu, ThreadsAndOtherHeadsChangeNothing) {
  std::mt19937 rng(3);
  ThreadPool one(1), three(3);
  const auto shape = shape_of(4, 64, DType::kBF16);
  const Case a(shape, 700, 40, Layout::kPages, rng), b(shape, 90, 1, Layout::kSingles, rng),
      none(shape, 5, 0, Layout::kPages, rng);
  std::vector<float> alone = a.zeros(MassBy::kGroup), together = alone, other = b.zeros(MassBy::kGroup),
                     nothing = none.zeros(MassBy::kGroup);
  const MassHead first[] = {a.head(alone)}, all[] = {b.head(other), none.head(nothing), a.head(together)};
  attention_mass_cpu(first, shape, MassBy::kGroup, {.pool = &one});
  attention_mass_cpu(all, shape, MassBy::kGroup, {.pool = &three});
  EXPECT_TRUE(testing::same_bits(alone, together));
  EXPECT_EQ(nothing, std::vector<float>(5, 0.0f));
}

// Equal keys attended by the same rows, at any position.
TEST(AttentionMassCpu, EqualTokensHaveEqualMass) {
  ThreadPool pool(2);
  std::mt19937 rng(4);
  testing::each_supported_target([&] {
    for (const std::int32_t rows : {1, 20}) {
      const auto shape = shape_of(4, 24, DType::kBF16);
      Case c(shape, 300, rows, Layout::kRagged, rng);
      for (std::size_t t = 1; t < 270; t += 7) std::copy_n(c.keys.tokens[0], shape.token_bytes(), c.keys.tokens[t]);
      std::vector<float> mass = c.zeros(MassBy::kGroup);
      const MassHead head[] = {c.head(mass)};
      attention_mass_cpu(head, shape, MassBy::kGroup, {.pool = &pool});
      for (std::size_t t = 1; t < 270; t += 7) ASSERT_EQ(mass[t], mass[0]) << t;
    }
  });
}

TEST(AttentionMassCpu, NaNInAKeyIsThatTokensAlone) {
  ThreadPool pool(2);
  std::mt19937 rng(5);
  for (const std::int32_t rows : {1, 20}) {
    const auto shape = shape_of(4, 16, DType::kBF16);
    Case c(shape, 100, rows, Layout::kPages, rng);
    testing::set_kv(c.keys.tokens[30], 3, shape.kv_dtype, NAN);
    std::vector<float> mass = c.zeros(MassBy::kGroup);
    const MassHead head[] = {c.head(mass)};
    attention_mass_cpu(head, shape, MassBy::kGroup, {.pool = &pool});
    for (std::size_t t = 0; t < 100; ++t) EXPECT_EQ(std::isnan(mass[t]), t == 30) << t;
  }
}

}  // namespace
}  // namespace mneme
