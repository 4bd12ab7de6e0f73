#include "src/engine/session/step_loop.h"
#include "src/base/seconds.h"

#include <chrono>
#include <utility>

namespace mneme {

void StepLoop::exclusive(FunctionRef<void(Engine&)> task) {
  std::unique_lock lock(mutex_);
  ++wanted_;
  changed_.wait(lock, [&] { return !busy_; });
  --wanted_;
  busy_ = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    task(engine_);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  busy_ = false;
  lock.unlock();
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
}

void StepLoop::listen(RequestId id, Listener* listener) {
  if (listener == nullptr) {
    listeners_.erase(id);
  } else {
    listeners_[id] = listener;
  }
}

void StepLoop::deliver_others(Others others) {
  exclusive([&](Engine&) { others_ = std::move(others); });
}

void StepLoop::step_now() {
  const auto start = std::chrono::steady_clock::now();
  std::vector<RequestEvent> events = engine_.step();
  const double seconds = seconds_since(start);
  std::vector<std::pair<Listener*, std::exception_ptr>> reported;
  std::vector<RequestEvent> unheard;
  for (RequestEvent& event : events) {
    const auto it = listeners_.find(event.id);
    if (it == listeners_.end()) {
      unheard.push_back(std::move(event));
      continue;
    }
    reported.emplace_back(it->second, nullptr);
    try {
      it->second->on_event(engine_, event);
    } catch (...) {
      reported.back().second = std::current_exception();
    }
  }
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [listener, error] : reported) {
      listener->deliveries_ = true;
      if (error) listener->failure_ = error;
      listener->publish();
    }
    ++steps_;
  }
  if (others_ && !unheard.empty()) others_(std::move(unheard), seconds);
}

// Requires  the lock held, and no step under way.
void StepLoop::step(std::unique_lock<std::mutex>& lock) {
  busy_ = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    step_now();
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  busy_ = false;
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
}

void StepLoop::with_lock(FunctionRef<void()> task) {
  const std::lock_guard lock(mutex_);
  task();
}

void StepLoop::advance(Listener& listener) {
  std::unique_lock lock(mutex_);
  const std::int64_t before = steps_;
  changed_.wait(lock, [&] { return listener.deliveries_ || steps_ != before || (!busy_ && wanted_ == 0); });
  if (!listener.deliveries_ && steps_ == before) step(lock);
  if (!std::exchange(listener.deliveries_, false)) return;
  if (const std::exception_ptr failure = std::exchange(listener.failure_, nullptr)) std::rethrow_exception(failure);
}

}  // namespace mneme
