// A progress bar on the terminal: progress, rate, remaining time.
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

// 12841 as "12,841".
std::string grouped(std::int64_t n);

class ProgressBar {
 public:
  enum class Mode { kHidden, kShown };
  explicit ProgressBar(Mode mode) : mode_(mode) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // kShown where standard error is a terminal.
  static Mode mode_for_stderr(bool wanted);

  // Time is measured from the first call with this `what`.
  void show(std::string_view what, std::int64_t done, std::int64_t total);
  // Erases the line. Call before other output.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  Mode mode_;
  bool visible_ = false;
  std::string what_;
  std::int64_t before_ = 0;  // done at start_: a download goes on from there
  Clock::time_point start_, last_;
};

}  // namespace mneme::cli
