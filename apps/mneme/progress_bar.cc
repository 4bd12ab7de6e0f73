#include "apps/mneme/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "src/base/ratio.h"
#include "src/base/seconds.h"

namespace mneme::cli {
namespace {

constexpr int kBarWidth = 24;
constexpr std::chrono::milliseconds kBetween{50};  // a terminal gains nothing from more

}  // namespace

std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  const std::size_t first = n < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string progress_line(std::string_view what, std::int64_t done, std::int64_t total, double seconds,
                          std::int64_t before) {
  const std::size_t comma = what.find(", ");
  const std::string_view name = what.substr(0, comma);
  const std::string_view unit = comma == std::string_view::npos ? "" : what.substr(comma + 2);
  const double share = total > 0 ? std::clamp(ratio(done, total), 0.0, 1.0) : 0.0;
  const auto filled = static_cast<std::size_t>(share * kBarWidth);
  std::string line = fmt::format("{}  [{}{}]  {} of {} {}", name, std::string(filled, '#'),
                                 std::string(kBarWidth - filled, '-'), grouped(done), grouped(total), unit);
  if (done > before && seconds > 0.1) {
    const double rate = ratio(done - before, seconds);
    line += fmt::format("  {} {}/s  {:.0f} s left", grouped(static_cast<std::int64_t>(rate)), unit,
                        ratio(total - done, rate));
  }
  return line;
}

ProgressBar::Mode ProgressBar::mode_for_stderr(bool wanted) {
  return wanted && ::isatty(STDERR_FILENO) == 1 ? Mode::kShown : Mode::kHidden;
}

void ProgressBar::show(std::string_view what, std::int64_t done, std::int64_t total) {
  if (mode_ == Mode::kHidden) return;
  const Clock::time_point now = Clock::now();
  if (what != what_) {
    what_ = what;
    start_ = now;
    before_ = done;
  } else if (now - last_ < kBetween && done < total) {
    return;
  }
  last_ = now;
  visible_ = true;
  const double seconds = seconds_between(start_, now);
  const std::string line = progress_line(what, done, total, seconds, before_);
  fmt::print(stderr, "\r{}\x1b[K", line);
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (!visible_) return;
  visible_ = false;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace mneme::cli
