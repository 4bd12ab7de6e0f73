#include "src/model/cuda/ranks/step_watch.h"

#include <fmt/format.h>

#include <utility>

namespace mneme {

using Clock = std::chrono::steady_clock;

StepWatch::StepWatch(Collective& ranks, double seconds, Calls calls)
    : ranks_(ranks), seconds_(seconds), calls_(std::move(calls)), thread_([this] { run(); }) {}

StepWatch::~StepWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepWatch::begin() {
  expect_all_well();
  const std::lock_guard lock(mutex_);
  began_ = Clock::now();
  running_ = true;
}

void StepWatch::end() {
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
  }
  expect_all_well();
}

void StepWatch::expect_all_well() {
  const std::lock_guard lock(mutex_);
  if (!why_.empty()) throw RanksStopped(why_);
}

std::string StepWatch::failure_after(double seconds) const {
  std::string why = ranks_.failure();
  if (why.empty() && seconds > seconds_) why = fmt::format("a step took more than {} s", seconds_);
  return why.empty() ? calls_.failure() : why;
}

void StepWatch::run() {
  constexpr auto kLook = std::chrono::milliseconds(100);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [this] { return ends_; })) {
    if (!running_) continue;
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    lock.unlock();
    const std::string why = failure_after(seconds);
    lock.lock();
    if (why.empty()) continue;
    why_ = why;  // before the kernels end: who waits for them asks at once
    lock.unlock();
    return calls_.end(why);
  }
}

}  // namespace mneme
