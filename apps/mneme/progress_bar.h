// A line on the terminal that says how far something is, how fast, and how long it will still take.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace mneme::cli {

// "prefill  [#########-----------]  6,144 of 12,288 tokens  1,234 tokens/s  5 s left"
//
// `what` is as ProgressFn has it: a name and a unit, "prefill, tokens".
std::string progress_line(std::string_view what, std::int64_t done, std::int64_t total, double seconds);

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

  // Time counts from the first call with this `what`, which may have nothing done yet.
  void show(std::string_view what, std::int64_t done, std::int64_t total);
  // Takes the line away, before anything else is written.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  Mode mode_;
  bool visible_ = false;
  std::string what_;
  Clock::time_point start_, last_;
};

}  // namespace mneme::cli
