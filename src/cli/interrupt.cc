#include "src/cli/interrupt.h"

#include <unistd.h>
#include <csignal>

namespace mneme::cli {
namespace {

volatile std::sig_atomic_t g_interrupts = 0;

extern "C" void on_interrupt(int) {
  if (g_interrupts != 0) ::_exit(kInterrupted);
  g_interrupts = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  g_interrupts = 0;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
}
InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
}

bool InterruptGuard::interrupted() const {
  return g_interrupts != 0;
}

}  // namespace mneme::cli
