#include "apps/mneme/progress_bar.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

namespace mneme::cli {
namespace {

TEST(ProgressLine, SaysHowFarHowFastAndHowLong) {
  EXPECT_EQ(progress_line("prefill, tokens", 6144, 12288, 4.0),
            "prefill  [############------------]  6,144 of 12,288 tokens  1,536 tokens/s  4 s left");
}

TEST(ProgressLine, GuessesNothingFromNothing) {
  EXPECT_EQ(progress_line("prefill, tokens", 0, 100, 5.0), "prefill  [------------------------]  0 of 100 tokens");
  EXPECT_EQ(progress_line("prefill, tokens", 50, 100, 0.0), "prefill  [############------------]  50 of 100 tokens");
  EXPECT_EQ(progress_line("loading", 0, 0, 1.0), "loading  [------------------------]  0 of 0 ");
}

TEST(ProgressLine, StaysWithinTheBar) {
  EXPECT_NE(progress_line("x, y", 200, 100, 0.0).find("[########################]"), std::string::npos);
}

TEST(Grouped, SetsCommasAtThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(ProgressBar, HiddenWritesNothing) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar(ProgressBar::Mode::kHidden);
    bar.show("prefill, tokens", 1, 2);
    bar.clear();
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(ProgressLine, ALogHasNoBar) {
  EXPECT_EQ(progress_log_line("prefill, tokens", 6144, 12288, 4.0),
            "prefill: 6,144 of 12,288 tokens, 1,536 tokens/s, 4 s left");
  EXPECT_EQ(progress_log_line("loading", 0, 0, 1.0), "loading: 0 of 0 ");
}

// Minutes of silence in the log of a CI run.
TEST(ProgressBar, WithoutATerminalALineEveryPeriod) {
  const auto written = [](std::chrono::nanoseconds period) {
    ::testing::internal::CaptureStderr();
    {
      ProgressBar bar(ProgressBar::Mode::kLines, period);
      bar.show("prefill, tokens", 0, 3);
      bar.show("prefill, tokens", 1, 3);
      bar.show("prefill, tokens", 3, 3);
      bar.clear();
    }
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(written(std::chrono::hours(1)), "") << "a short job";
  EXPECT_EQ(written(std::chrono::nanoseconds(0)),
            "mneme: prefill: 0 of 3 tokens\nmneme: prefill: 1 of 3 tokens\nmneme: prefill: 3 of 3 tokens\n");
}

TEST(ProgressBar, ShowsAndTakesItselfAway) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar(ProgressBar::Mode::kShown);
    bar.show("prefill, tokens", 0, 2);
    bar.show("prefill, tokens", 1, 2);  // too soon after the first: not drawn
    bar.show("prefill, tokens", 2, 2);  // the end always is
  }
  const std::string drawn = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(drawn.find("0 of 2 tokens"), std::string::npos);
  EXPECT_EQ(drawn.find("1 of 2 tokens"), std::string::npos);
  EXPECT_NE(drawn.find("2 of 2 tokens"), std::string::npos);
  EXPECT_TRUE(drawn.ends_with("\r\x1b[K")) << "nothing is left of it";
}

}  // namespace
}  // namespace mneme::cli
