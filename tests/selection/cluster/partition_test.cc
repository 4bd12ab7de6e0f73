#include "src/selection/cluster/partition.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "src/base/rng.h"

namespace mneme {
namespace {

using ::testing::ElementsAre;

UnitRange clusters(std::int32_t begin, std::int32_t end) {
  return {begin, end, true};
}
UnitRange segment(std::int32_t begin, std::int32_t end) {
  return {begin, end, false};
}

void decode(Partition& p, std::int32_t n, std::int32_t boundary_every = 0) {
  for (std::int32_t i = 0; i < n; ++i) p.add_output(boundary_every > 0 && i % boundary_every == 0);
}

// A prompt of 100, sinks 4, buffer 20, blocks of 32, segments of 5 to 10.
TEST(Partition, WorkedExample) {
  Partition p({.sink = 4, .recent = 20, .block = 32, .smallest = 5, .largest = 10});
  p.add_prompt(70);
  EXPECT_THAT(p.ranges(), ElementsAre(clusters(4, 36))) << "70 - 20 - 36 is no block";
  p.add_prompt(100);
  EXPECT_THAT(p.ranges(), ElementsAre(clusters(4, 36), clusters(36, 68)));
  p.end_prompt();
  EXPECT_THAT(p.ranges(), ElementsAre(clusters(4, 36), clusters(36, 68), clusters(68, 80)));
  p.add_output(true);  // 21 in the buffer: the prompt's tail is cut at 90
  EXPECT_EQ(p.grouped(), 90);
  EXPECT_EQ(p.ranges().back(), segment(80, 90));
  p.add_output(false);
  p.add_output(true);  // the segment of tokens 100 and 101 is too short: it continues
  decode(p, 7);        // to 109
  EXPECT_EQ(p.grouped(), 90);
  p.add_output(false);  // the largest size: 110 starts another
  EXPECT_EQ(p.ranges().back(), segment(90, 100));
  decode(p, 4);
  p.add_output(true);  // 115 starts another
  decode(p, 5);        // to 120
  EXPECT_EQ(p.ranges().back(), segment(100, 110));
  EXPECT_EQ(p.grouped(), 110);
  EXPECT_EQ(p.length(), 121);
}

TEST(Partition, APromptAfterAnAnswerTakesItsShortRestAlong) {
  Partition p({.sink = 0, .recent = 10, .block = 100, .smallest = 5, .largest = 10});
  p.add_prompt(20);
  decode(p, 3);  // 20, 21, 22: a segment that is too short
  p.add_prompt(60);
  p.end_prompt();
  EXPECT_THAT(p.ranges(), ElementsAre(clusters(0, 10), segment(10, 20), clusters(20, 50)));
  Partition q({.sink = 0, .recent = 10, .block = 100, .smallest = 5, .largest = 10});
  q.add_prompt(20);
  decode(q, 6, 6);  // long enough: a unit of its own
  q.add_prompt(60);
  q.end_prompt();
  EXPECT_THAT(q.ranges(), ElementsAre(clusters(0, 10), segment(10, 20), segment(20, 26), clusters(26, 50)));
}

TEST(Partition, ShortSequencesHaveNoUnits) {
  Partition p({.sink = 16, .recent = 64, .block = 8192, .smallest = 8, .largest = 64});
  decode(p, 3, 1);
  p.add_prompt(10);
  decode(p, 69, 5);
  EXPECT_THAT(p.ranges(), testing::IsEmpty());
  EXPECT_EQ(p.grouped(), 16);
  p.add_output(false);
  EXPECT_EQ(p.length(), 80);
  EXPECT_EQ(p.grouped(), 16);
  p.add_output(false);
  EXPECT_GT(p.grouped(), 16);
}

TEST(Partition, NamesWhatCannotBe) {
  EXPECT_EQ(check_partition({.sink = 0, .recent = 64}), nullptr);
  EXPECT_NE(check_partition({.sink = 0, .recent = 63}), nullptr);
  EXPECT_NE(check_partition({.sink = 0, .recent = 64, .smallest = 0}), nullptr);
  EXPECT_NE(check_partition({.sink = 0, .recent = 64, .smallest = 9, .largest = 8}), nullptr);
  EXPECT_NE(check_partition({.sink = 0, .recent = 64, .block = 0}), nullptr);
}

struct Story {
  PartitionRules rules;
  std::vector<SeenToken> tokens;
};

// Turns of all lengths; boundaries often, rarely, never.
Story draw_story(Rng& rng) {
  Story s;
  const auto below = [&](std::uint64_t n) { return static_cast<std::int32_t>(rng.below(n)); };
  s.rules.sink = below(20);
  s.rules.smallest = 1 + below(9);
  s.rules.largest = s.rules.smallest + below(20);
  s.rules.recent = s.rules.largest + below(40);
  s.rules.cluster_segments = below(3) == 0;
  s.rules.block = 1 + below(100);
  const std::uint64_t rarity = 1 + rng.below(30);
  for (int turn = 0; turn < 4; ++turn) {
    for (std::int32_t i = below(3) == 0 ? below(4) : below(150); i > 0; --i) s.tokens.push_back({});
    for (std::int32_t i = below(3) == 0 ? below(4) : below(150); i > 0; --i)
      s.tokens.push_back({true, rng.below(rarity) == 0});
  }
  s.tokens.push_back({true, true});
  return s;
}

// Prompts in chunks of any size, steps one by one.
Partition told(const Story& s, std::size_t n, Rng& rng) {
  Partition p(s.rules);
  for (std::size_t t = 0; t < n;) {
    if (s.tokens[t].decoded) {
      p.add_output(s.tokens[t].boundary);
      ++t;
      continue;
    }
    std::size_t end = t;
    while (end < n && !s.tokens[end].decoded && rng.below(20) > 0) ++end;
    p.add_prompt(static_cast<std::int32_t>(end));
    if (end < s.tokens.size() && s.tokens[end].decoded && rng.below(2) == 0) p.end_prompt();
    t = end;
  }
  return p;
}

TEST(Partition, IsTheReferencesWhateverTheChunks) {
  Rng rng(7);
  for (int i = 0; i < 3000; ++i) {
    const Story s = draw_story(rng);
    // Any decoded step of the story.
    std::size_t n = 1 + rng.below(s.tokens.size());
    while (!s.tokens[n - 1].decoded) ++n;
    const PartitionedTokens expected = partition_ref(s.rules, std::span(s.tokens).first(n));
    const Partition p = told(s, n, rng);
    ASSERT_EQ(p.grouped(), expected.grouped) << i;
    ASSERT_TRUE(std::equal(p.ranges().begin(), p.ranges().end(), expected.ranges.begin(), expected.ranges.end())) << i;
    // Ranges are contiguous, segments have valid sizes, and the buffer is within its limit.
    const std::int32_t longest = std::max(s.rules.block, s.rules.cluster_segments ? s.rules.largest : 0);
    std::int32_t at = s.rules.sink;
    for (const UnitRange& range : p.ranges()) {
      ASSERT_EQ(range.begin, at);
      at = range.end;
      ASSERT_GE(range.end - range.begin, range.clusters ? 1 : s.rules.smallest);
      ASSERT_LE(range.end - range.begin, range.clusters ? longest : s.rules.largest);
    }
    ASSERT_EQ(at, p.grouped());
    ASSERT_LE(p.length() - p.grouped(), s.rules.recent);
    // What a step moves out of the buffer does not depend on its own boundary.
    Partition with = p, without = p;
    with.add_output(true), without.add_output(false);
    ASSERT_TRUE(std::ranges::equal(with.ranges(), without.ranges())) << i;
    without.begin_segment();
    for (int k = 0; k < 60; ++k) {
      with.add_output(k % 7 == 0), without.add_output(k % 7 == 0);
      ASSERT_TRUE(std::ranges::equal(with.ranges(), without.ranges())) << i;
    }
  }
}

// Truncated anywhere, then fed the removed tokens as a prompt: it stays consistent, and every token is in one unit
// again.
TEST(Partition, GoesOnAfterItWasCut) {
  Rng rng(9);
  for (int i = 0; i < 2000; ++i) {
    const Story s = draw_story(rng);
    Partition p = told(s, s.tokens.size(), rng);
    const std::int32_t length = p.length(), cut = static_cast<std::int32_t>(rng.below(s.tokens.size() + 1));
    p.truncate(cut);
    ASSERT_EQ(p.length(), cut);
    ASSERT_TRUE(p.grouped() <= cut || p.ranges().empty());
    if (rng.below(2) == 0) p.add_prompt(length);
    p.add_output(true);
    std::int32_t at = s.rules.sink;
    for (const UnitRange& range : p.ranges()) {
      ASSERT_EQ(range.begin, at);
      ASSERT_GT(range.end, range.begin);
      at = range.end;
    }
    ASSERT_EQ(at, p.grouped());
    ASSERT_LE(p.length() - p.grouped(), s.rules.recent) << i;
  }
}

}  // namespace
}  // namespace mneme
