#include "src/selection/mass/drop_least.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/selection/mass/drop_least_testing.h"

namespace mneme {
namespace {

using testing::drawn_head;
using testing::DropHead;

struct OneThread {
  std::int32_t rank() const { return 0; }
  std::int32_t size() const { return 1; }
  std::int32_t sum(std::int32_t n) const { return n; }
  std::uint64_t least(std::uint64_t key) const { return key; }
};

std::int32_t drop(DropHead& head) {
  return drop_least(
      OneThread(), head.masks.data(), head.place, [&](std::int32_t slot) { return head.scores[slot]; },
      [&](std::int32_t slot) { head.masks[slot / 32] &= ~(1u << slot % 32); });
}

TEST(DropLeast, LeavesWhatTheRuleKeeps) {
  std::mt19937 rng(1);
  std::int64_t dropped = 0;
  for (int i = 0; i < 10000; ++i) {
    DropHead head = drawn_head(rng, i % 4 == 0 ? 300 : 40);
    const std::vector<std::int32_t> want = testing::kept_slots(head), before = head.slots();
    std::int32_t sinks = 0;
    for (const std::int32_t s : before) sinks += s < head.place.first_slot ? 1 : 0;
    ASSERT_EQ(size32(want), kept_of(size32(before), sinks, head.place.recent, head.place.keep)) << "case " << i;
    const std::int32_t n = drop(head);
    ASSERT_EQ(head.slots(), want) << "case " << i;
    ASSERT_EQ(n, size32(before) - size32(want)) << "case " << i;
    dropped += n;
  }
  EXPECT_GT(dropped, 5000);
}

// Step by step over pages: budgets of one token and around a page, windows of none and of all but one.
TEST(DropLeast, ManyStepsOfOneToken) {
  std::mt19937 rng(2);
  for (const std::int32_t budget : {1, 2, 31, 32, 33, 64})
    for (const std::int32_t recent : {0, budget / 2, budget - 1}) {
      DropHead head;
      head.place.keep = budget - 1, head.place.recent = std::max(0, recent - 1);
      for (std::int32_t step = 0; step < 150; ++step) {
        ++head.place.n_slots;
        head.masks.resize((head.place.n_slots + 31) / 32 + 1, ~0u);
        head.scores.push_back(0);
        for (float& s : head.scores) s += testing::drawn_score(rng);
        const std::vector<std::int32_t> want = testing::kept_slots(head);
        drop(head);
        ASSERT_EQ(head.slots(), want) << "budget " << budget << ", recent " << recent << ", step " << step;
        ASSERT_EQ(size32(want), std::min(step + 1, budget - 1));
      }
    }
}

TEST(DropKey, OrdersScoresThenAge) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> ascending = {-inf, -2, -1e-30f, 0, 1e-30f, 3, inf};
  EXPECT_LT(drop_key(NAN, 7), drop_key(-inf, 0));
  EXPECT_LT(drop_key(-NAN, 7), drop_key(-inf, 0));
  for (std::size_t i = 1; i < ascending.size(); ++i)
    EXPECT_LT(drop_key(ascending[i - 1], 9), drop_key(ascending[i], 1)) << i;
  EXPECT_EQ(drop_key(-0.0f, 3), drop_key(0.0f, 3));
  EXPECT_LT(drop_key(1, 3), drop_key(1, 4)) << "the oldest goes";
  EXPECT_LT(drop_key(NAN, 3), drop_key(NAN, 4));
}

}  // namespace
}  // namespace mneme
