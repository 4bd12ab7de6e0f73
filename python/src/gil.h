// Waiting without the GIL, in slices after which Ctrl-C is looked at; and what a fork of the process leaves behind.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>

#include "src/base/error.h"

namespace mneme::python {

namespace nb = nanobind;

// The longest that a signal handler of Python waits for a call that computes.
inline constexpr std::chrono::milliseconds kSignalSlice{100};

// Calls that the interpreter must not end under: it ends a thread where that takes the GIL, in the middle of C++ frames.
inline std::atomic<int> g_inside = 0;

class Inside {
 public:
  Inside() { ++g_inside; }
  ~Inside() { --g_inside; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

// The GIL is released during its lifetime.
class Released {
 private:
  Inside inside_;  // until the GIL is held again: a thread that ends while it waits for it ends the process
  nb::gil_scoped_release release_;
};

// Asks Python for signals at most once in a slice. Only Python's main thread ever has any.
//
// Errors  nb::python_error: what a signal handler raised (KeyboardInterrupt).
class SignalCheck {
 public:
  // Requires  the GIL is released.
  bool pending() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < kSignalSlice) return raised_;
    last_ = now;
    const nb::gil_scoped_acquire acquire;
    raised_ = raised_ || PyErr_CheckSignals() != 0;
    if (raised_ && !error_) error_.emplace();  // takes the raised exception over
    return raised_;
  }
  // Requires  the GIL is held.
  void rethrow() {
    if (error_) throw std::move(*error_);
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  bool raised_ = false;
  std::optional<nb::python_error> error_;
};

// A forked child has the memory of an engine without its threads: it may neither use nor end it.
class ProcessMark {
 public:
  bool is_child() const { return ::getpid() != pid_; }
  // Errors  kRequest.
  void expect_same() const {
    if (is_child()) fail(ErrorKind::kRequest, "this process was forked after the model was loaded: load it again here");
  }

 private:
  pid_t pid_ = ::getpid();
};

}  // namespace mneme::python
