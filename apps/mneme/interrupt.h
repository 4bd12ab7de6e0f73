// Ctrl-C: the first ends the answer, the second the program.
#pragma once

#include <csignal>
#include <limits>

namespace mneme::cli {

// Exit code after an interrupt.
inline constexpr int kInterrupted = 130;

// During its lifetime interrupts are recorded; only the interrupt of the given number ends the program. Guards nest;
// the innermost applies.
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
