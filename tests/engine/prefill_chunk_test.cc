#include "src/engine/schedule/prefill_chunk.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/engine/schedule/answer_forecast.h"

namespace mneme {
namespace {

// Steps of a machine that takes `base` for answers and `each` for a prompt token.
std::int32_t settled(PrefillChunk& chunk, double base, double each, int steps = 40) {
  for (int i = 0; i < steps; ++i) chunk.observe(3, chunk.tokens(), base + each * chunk.tokens());
  return chunk.tokens();
}

TEST(PrefillChunk, WithoutATargetStepsAreFull) {
  PrefillChunk chunk(0, 1000);
  EXPECT_EQ(chunk.tokens(), 1000);
  EXPECT_EQ(settled(chunk, 1, 1), 1000);
}

TEST(PrefillChunk, SettlesWhereAStepTakesTheTarget) {
  PrefillChunk chunk(0.050, 4096);
  EXPECT_NEAR(settled(chunk, 0.010, 0.0001), 400, 4);
  EXPECT_NEAR(settled(chunk, 0.010, 0.0004), 100, 2) << "prompts grew";
  EXPECT_NEAR(settled(chunk, 0.030, 0.00005), 400, 4);
}

// From above and from below, without going past it.
TEST(PrefillChunk, ComesCloserStepByStep) {
  for (const double each : {0.00001, 0.001}) {
    PrefillChunk chunk(0.050, 100000);
    double before = 1e9;
    for (int i = 0; i < 60; ++i) {
      const double seconds = 0.010 + each * chunk.tokens();
      const double miss = std::abs(seconds - 0.050);
      EXPECT_LE(miss, before + each) << i;
      before = miss;
      chunk.observe(1, chunk.tokens(), seconds);
    }
    EXPECT_LT(before, 0.001);
  }
}

TEST(PrefillChunk, StaysWithinItsBounds) {
  PrefillChunk chunk(0.050, 512);
  EXPECT_EQ(settled(chunk, 0.2, 0.001), PrefillChunk::kLeast) << "what no chunk changes takes longer than the target";
  EXPECT_EQ(settled(chunk, 0.001, 1e-9), 512);
  PrefillChunk small(0.050, 8);
  EXPECT_EQ(small.tokens(), 8);
  EXPECT_EQ(settled(small, 0.2, 0.001), 8);
}

TEST(PrefillChunk, AnswersThatMissTheTargetAloneLeavePromptsAThird) {
  PrefillChunk chunk(0.050, 4096);
  for (int i = 0; i < 100; ++i) chunk.observe(3, 0, 0.080);
  EXPECT_NEAR(settled(chunk, 0.080, 0.0001), 400, 4) << "steps of 120 ms";
  for (int i = 0; i < 100; ++i) chunk.observe(1, 0, 0.010);
  EXPECT_NEAR(settled(chunk, 0.010, 0.0001), 400, 4) << "the target again";
}

TEST(PrefillChunk, LearnsFromStepsOfAnswers) {
  PrefillChunk chunk(0.050, 4096);
  const std::int32_t before = chunk.tokens();
  chunk.observe(0, 4096, 10);
  chunk.observe(5, 0, 0.010);
  chunk.observe(5, before, 0);
  EXPECT_EQ(chunk.tokens(), before);
  chunk.observe(5, before / 2, 0.001);
  EXPECT_EQ(chunk.tokens(), before) << "a small step says nothing about a large one";
  chunk.observe(5, before / 2, 0.060);
  EXPECT_LT(chunk.tokens(), before / 2);
}

TEST(AnswerForecast, ReservesAllUntilEnoughHaveEnded) {
  AnswerForecast forecast;
  for (std::int64_t i = 0; i < AnswerForecast::kEnough; ++i) {
    EXPECT_EQ(forecast.tokens(1000, 0), 1000);
    forecast.add(10);
  }
  EXPECT_EQ(forecast.tokens(1000, 0), 32);
  EXPECT_EQ(forecast.tokens(20, 0), 20);
  EXPECT_EQ(forecast.tokens(1000, 500), 532);
}

TEST(AnswerForecast, CountsOnWhatNineOfTenHad) {
  AnswerForecast forecast;
  for (int i = 1; i <= 100; ++i) forecast.add(i * 10);
  EXPECT_EQ(forecast.tokens(5000, 0), 900);
  for (std::size_t i = 0; i < AnswerForecast::kRemembered; ++i) forecast.add(200);
  EXPECT_EQ(forecast.tokens(5000, 0), 200) << "long ones are forgotten";
}

}  // namespace
}  // namespace mneme
