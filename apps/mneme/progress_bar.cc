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

// "prefill, tokens" as its two parts.
struct Job {
  std::string_view name, unit;

  explicit Job(std::string_view what) {
    const std::size_t comma = what.find(", ");
    name = what.substr(0, comma);
    if (comma != what.npos) unit = what.substr(comma + 2);
  }
};

// "1,234 tokens/s", "5 s left", between separators; empty where there is nothing to measure.
std::string rate_of(const Job& job, std::int64_t done, std::int64_t total, double seconds, std::int64_t before,
                    std::string_view separator) {
  if (done <= before || seconds <= 0.1) return "";
  const double rate = ratio(done - before, seconds);
  return fmt::format("{}{} {}/s{}{:.0f} s left", separator, grouped(static_cast<std::int64_t>(rate)), job.unit,
                     separator, ratio(total - done, rate));
}

}  // namespace

std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  const std::size_t first = n < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string progress_line(std::string_view what, std::int64_t done, std::int64_t total, double seconds,
                          std::int64_t before) {
  const Job job(what);
  const double share = total > 0 ? std::clamp(ratio(done, total), 0.0, 1.0) : 0.0;
  const auto filled = static_cast<std::size_t>(share * kBarWidth);
  return fmt::format("{}  [{}{}]  {} of {} {}{}", job.name, std::string(filled, '#'),
                     std::string(kBarWidth - filled, '-'), grouped(done), grouped(total), job.unit,
                     rate_of(job, done, total, seconds, before, "  "));
}

std::string progress_log_line(std::string_view what, std::int64_t done, std::int64_t total, double seconds,
                              std::int64_t before) {
  const Job job(what);
  return fmt::format("{}: {} of {} {}{}", job.name, grouped(done), grouped(total), job.unit,
                     rate_of(job, done, total, seconds, before, ", "));
}

ProgressBar::Mode ProgressBar::mode_for_stderr(bool wanted) {
  if (!wanted) return Mode::kHidden;
  return ::isatty(STDERR_FILENO) == 1 ? Mode::kShown : Mode::kLines;
}

void ProgressBar::show(std::string_view what, std::int64_t done, std::int64_t total) {
  if (mode_ == Mode::kHidden) return;
  const Clock::time_point now = Clock::now();
  const bool begins = what != what_;
  if (begins) {
    what_ = what;
    start_ = now;
    before_ = done;
  }
  if (mode_ == Mode::kLines) {
    if (begins) last_ = now;
    if (now - last_ >= period_) log(done, total, now);
  } else if (begins || now - last_ >= kBetween || done >= total) {
    draw(done, total, now);
  }
}

void ProgressBar::draw(std::int64_t done, std::int64_t total, Clock::time_point now) {
  last_ = now;
  visible_ = true;
  fmt::print(stderr, "\r{}\x1b[K", progress_line(what_, done, total, seconds_between(start_, now), before_));
  std::fflush(stderr);
}

void ProgressBar::log(std::int64_t done, std::int64_t total, Clock::time_point now) {
  last_ = now;
  fmt::print(stderr, "mneme: {}\n", progress_log_line(what_, done, total, seconds_between(start_, now), before_));
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (!visible_) return;
  visible_ = false;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace mneme::cli
