// Progress, rate and remaining time: a bar on the terminal, or now and then a line in a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace mneme::cli {

// "prefill  [#########-----------]  6,144 of 12,288 tokens  1,234 tokens/s  5 s left"
//
// `what` is that of ProgressFn: a name and a unit, "prefill, tokens". `before` was done when `seconds` began.
std::string progress_line(std::string_view what, std::int64_t done, std::int64_t total, double seconds,
                          std::int64_t before = 0);

// The same without a bar: "prefill: 6,144 of 12,288 tokens, 1,234 tokens/s, 5 s left"
std::string progress_log_line(std::string_view what, std::int64_t done, std::int64_t total, double seconds,
                              std::int64_t before = 0);

// 12841 as "12,841".
std::string grouped(std::int64_t n);

class ProgressBar {
 public:
  enum class Mode { kHidden, kShown, kLines };
  // period: between two lines of kLines. A job that takes less writes none.
  explicit ProgressBar(Mode mode, std::chrono::nanoseconds period = std::chrono::seconds(10))
      : mode_(mode), period_(period) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // kShown where standard error is a terminal, else kLines; kHidden where it is not wanted.
  static Mode mode_for_stderr(bool wanted);

  // Time is measured from the first call with this `what`.
  void show(std::string_view what, std::int64_t done, std::int64_t total);
  // Erases the line. Call before other output.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(std::int64_t done, std::int64_t total, Clock::time_point now);
  void log(std::int64_t done, std::int64_t total, Clock::time_point now);

  Mode mode_;
  std::chrono::nanoseconds period_;
  bool visible_ = false;
  std::string what_;
  std::int64_t before_ = 0;  // done at start_: a download goes on from there
  Clock::time_point start_, last_;
};

}  // namespace mneme::cli
