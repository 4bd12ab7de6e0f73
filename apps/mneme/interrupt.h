// Ctrl-C: the first ends the answer, another one the program.
#pragma once

#include <csignal>
#include <limits>

namespace mneme::cli {

// Exit code of a program that was interrupted.
inline constexpr int kInterrupted = 130;

// While it lives, an interrupt is noted instead of ending the program; only the one of that number ends it, at once.
// Guards may be nested; the inner one counts.
class InterruptGuard {
 public:
  static constexpr int kNever = std::numeric_limits<int>::max();

  explicit InterruptGuard(int ends_program = 2);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const;

 private:
  struct sigaction before_ {};
  int limit_before_;
};

}  // namespace mneme::cli
