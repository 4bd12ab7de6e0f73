#include "src/selection/index/unit_table.h"

#include <gtest/gtest.h>

#include <cstring>

#include "src/base/size32.h"

namespace mneme {
namespace {

class Units : public ::testing::TestWithParam<bool> {
 protected:
  Units() {
    cache_.extend(900);
    for (std::int32_t t = 0; t < 900; ++t) std::memcpy(cache_.token(0, 0, t), &t, sizeof(t));
  }
  UnitTable table() const { return UnitTable(GetParam() ? 32 : 0); }
  // Positions of a unit's first n tokens, read through its runs.
  std::vector<std::int32_t> read(const UnitTable& table, std::int32_t unit, std::int32_t n) const {
    std::vector<KvRun> runs;
    table.append_runs(unit, n, cache_, 0, 0, runs);
    std::vector<std::int32_t> positions;
    for (const KvRun& run : runs)
      for (std::int32_t i = 0; i < run.n_tokens; ++i) {
        std::memcpy(&positions.emplace_back(), run.kv + 32 * i, sizeof(std::int32_t));
      }
    return positions;
  }
  PagePool pool_{KvShape{1, 1, 8, DType::kBF16}, 64};
  SequenceCache cache_{pool_};
};

TEST_P(Units, HoldWhatWasAppended) {
  UnitTable t = table();
  EXPECT_EQ(t.size(), 0);
  std::vector<std::vector<std::int32_t>> units;
  for (std::int32_t u = 0; u < 300; ++u) {
    std::vector<std::int32_t> unit;
    for (std::int32_t i = 0; i <= u % 7; ++i) unit.push_back(u + i * (1 + u % 3));
    t.append(unit, cache_, 0, 0);
    units.push_back(unit);
  }
  EXPECT_EQ(t.size(), 300);
  std::int32_t total = 0;
  for (std::int32_t u = 0; u < 300; ++u) {
    const auto& unit = units[u];
    ASSERT_EQ(t.n_tokens(u), size32(unit));
    for (std::int32_t i = 0; i < t.n_tokens(u); ++i) ASSERT_EQ(t.token(u, i), unit[i]);
    for (std::size_t n = 0; n <= unit.size(); ++n)
      ASSERT_EQ(read(t, u, static_cast<std::int32_t>(n)),
                std::vector<std::int32_t>(unit.begin(), unit.begin() + static_cast<std::ptrdiff_t>(n)));
    total += t.n_tokens(u);
  }
  EXPECT_EQ(t.n_tokens(), total);
  EXPECT_EQ(t.copy_bytes() > 0, GetParam());
}

// A segment is one run, up to the end of a page or a chunk.
TEST_P(Units, NeighboursLieInOneRun) {
  UnitTable t = table();
  t.append(std::vector<std::int32_t>{40, 41, 42, 43, 44}, cache_, 0, 0);
  std::vector<KvRun> runs;
  t.append_runs(0, 5, cache_, 0, 0, runs);
  EXPECT_EQ(runs.size(), 1u);
}

TEST_P(Units, AForkGoesItsOwnWay) {
  UnitTable a = table();
  for (std::int32_t u = 0; u < 100; ++u) a.append(std::vector<std::int32_t>{u, 2 * u + 1, 700}, cache_, 0, 0);
  UnitTable b = a;
  b.truncate(50);
  EXPECT_EQ(b.n_tokens(), 150);
  b.append(std::vector<std::int32_t>{5, 6}, cache_, 0, 0);
  a.append(std::vector<std::int32_t>{7, 8, 9}, cache_, 0, 0);
  EXPECT_EQ(read(b, 50, 2), (std::vector<std::int32_t>{5, 6}));
  EXPECT_EQ(read(a, 50, 3), (std::vector<std::int32_t>{50, 101, 700}));
  EXPECT_EQ(read(a, 100, 3), (std::vector<std::int32_t>{7, 8, 9}));
  EXPECT_EQ(read(b, 49, 3), read(a, 49, 3));
  b.truncate(0);
  EXPECT_EQ(b.n_tokens(), 0);
  b.append(std::vector<std::int32_t>{3}, cache_, 0, 0);
  EXPECT_EQ(read(b, 0, 1), (std::vector<std::int32_t>{3}));
}

INSTANTIATE_TEST_SUITE_P(InPagesAndCopied, Units, ::testing::Bool());

}  // namespace
}  // namespace mneme
