// What is drafted, and how much.
#include "src/engine/speculation/ngram_drafter.h"

#include <gtest/gtest.h>

#include "src/base/rng.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens drafts_of(NgramDrafter& drafter, const Tokens& tokens, std::int32_t most = Drafter::kMost) {
  Tokens drafts;
  drafter.draft(tokens, most, drafts);
  return drafts;
}

SpeculationOptions ngram(int k, int min) {
  return {.method = SpeculationOptions::Method::kNgram, .drafts = k, .min_match = min};
}

TEST(NgramDrafter, WhatFollowedTheLongestEarlierOccurrence) {
  const Tokens text = {9, 1, 2, 3, 4, 50, 51, 52, 53, 8, 1, 2, 3, 4, 60, 61, 62, 63, 9, 1, 2, 3, 4};
  NgramDrafter drafter(ngram(3, 4));
  EXPECT_EQ(drafts_of(drafter, text), (Tokens{50, 51, 52}));  // five tokens agree, of the later occurrence four
  EXPECT_EQ(drafts_of(drafter, text, 1), Tokens{50});
  NgramDrafter strict(ngram(3, 6));
  EXPECT_EQ(drafts_of(strict, text), Tokens{});
}

// An occurrence that overlaps the end repeats itself.
TEST(NgramDrafter, RunsAndCyclesGoOn) {
  NgramDrafter drafter(ngram(7, 4));
  drafter.verified(0, 0);
  EXPECT_EQ(drafts_of(drafter, Tokens(20, 5)), Tokens(3, 5));
  for (int i = 0; i < 20; ++i) drafter.verified(3, 3);
  EXPECT_EQ(drafts_of(drafter, Tokens(21, 5)), Tokens(7, 5));
  NgramDrafter cycle(ngram(7, 4));
  for (int i = 0; i < 20; ++i) cycle.verified(3, 3);
  EXPECT_EQ(drafts_of(cycle, {1, 2, 3, 1, 2, 3, 1, 2, 3}), (Tokens{1, 2, 3, 1, 2, 3}));
}

// No more drafts than tokens that agree.
TEST(NgramDrafter, ShortMatchesGiveFewDrafts) {
  NgramDrafter drafter(ngram(7, 2));
  for (int i = 0; i < 20; ++i) drafter.verified(7, 7);
  EXPECT_EQ(drafts_of(drafter, {1, 2, 30, 31, 32, 33, 4, 1, 2}), (Tokens{30, 31}));
}

TEST(DraftLength, FollowsWhatIsAccepted) {
  DraftLength length;
  EXPECT_EQ(length.at(0), 3);
  for (int i = 0; i < 4; ++i) length.verified(0, 3, 3);
  EXPECT_GE(length.at(0), 15);
  for (int i = 0; i < 4; ++i) length.verified(0, 15, 0);
  EXPECT_LE(length.at(0), 3);
}

// Drafts that are never right cost at most a row in 16 tokens, and one in 65 in the long run.
TEST(DraftLength, StopsWhereNothingIsAccepted) {
  DraftLength length;
  std::int32_t rows = 0;
  const auto run = [&](std::int32_t from, std::int32_t to) {
    rows = 0;
    for (std::int32_t n = from; n < to; ++n) {
      const std::int32_t drafts = std::min(length.at(n), 7);
      rows += drafts;
      if (drafts > 0) length.verified(n, drafts, 0);
    }
  };
  run(0, 400);
  EXPECT_LE(rows, 400 / 16);
  run(400, 400 + 65 * 100);
  EXPECT_LE(rows, 101);
  EXPECT_GE(rows, 98);  // it goes on trying
}

TEST(DraftLength, BeginsAgainWhenDraftsAreRight) {
  DraftLength length;
  std::int32_t n = 0;
  while (length.at(n) > 0) length.verified(n, 1, 0);
  n += DraftLength::kPause;
  for (int i = 0; i < 12; ++i) length.verified(n, length.at(n), length.at(n));
  EXPECT_GE(length.at(n), 7);
}

}  // namespace
}  // namespace mneme
