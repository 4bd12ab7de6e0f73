#include "apps/mneme/interrupt.h"

#include <unistd.h>

namespace mneme::cli {
namespace {

volatile std::sig_atomic_t g_interrupts = 0;
volatile std::sig_atomic_t g_limit = 2;

extern "C" void on_interrupt(int) {
  g_interrupts = g_interrupts + 1;
  if (g_interrupts >= g_limit) ::_exit(kInterrupted);
}

}  // namespace

InterruptGuard::InterruptGuard(int ends_program) : limit_before_(g_limit) {
  g_interrupts = 0;
  g_limit = ends_program;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &before_);
}
InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &before_, nullptr);
  g_limit = limit_before_;
  g_interrupts = 0;
}

bool InterruptGuard::interrupted() const {
  return g_interrupts != 0;
}

}  // namespace mneme::cli
