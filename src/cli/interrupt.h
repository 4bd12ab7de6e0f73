// Ctrl-C: the first ends the answer, the second the program.
#pragma once

namespace mneme::cli {

// Exit code of a program that was interrupted.
inline constexpr int kInterrupted = 130;

// While it lives, an interrupt is noted instead of ending the program; another one ends it at once.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const;
};

}  // namespace mneme::cli
