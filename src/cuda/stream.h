// What orders work on the device: streams, events, and graphs of launches that are replayed as one.
#pragma once

#include <functional>
#include <utility>

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace mneme {

class Event;

// Work in a stream runs in the order in which it came. Errors of earlier work show at synchronize(), as kDevice.
class Stream {
 public:
  enum class Priority { kNormal, kHigh };
  Stream() = default;  // none: nothing may be launched on it
  static Stream make(Priority priority = Priority::kNormal);
  ~Stream();
  Stream(Stream&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  Stream& operator=(Stream&& o) noexcept {
    std::swap(handle_, o.handle_);
    return *this;
  }

  CUstream_st* get() const { return handle_; }
  void synchronize() const;
  // What comes after this waits for what came before `event`.
  void wait(const Event& event) const;

 private:
  CUstream_st* handle_ = nullptr;
};

class Event {
 public:
  enum class Timing { kNone, kTimed };
  Event() = default;
  static Event make(Timing timing = Timing::kNone);
  ~Event();
  Event(Event&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  Event& operator=(Event&& o) noexcept {
    std::swap(handle_, o.handle_);
    return *this;
  }

  CUevent_st* get() const { return handle_; }
  void record(const Stream& stream) const;
  void synchronize() const;
  bool happened() const;
  // Seconds from `begin` to this one; both are timed and have happened.
  double seconds_since(const Event& begin) const;

 private:
  CUevent_st* handle_ = nullptr;
};

// Launches, captured once.
class Graph {
 public:
  Graph() = default;
  // Runs `launches`, which only enqueues on `stream`, and keeps what it enqueued.
  static Graph capture(const Stream& stream, const std::function<void()>& launches);
  ~Graph();
  Graph(Graph&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  Graph& operator=(Graph&& o) noexcept {
    std::swap(handle_, o.handle_);
    return *this;
  }

  explicit operator bool() const { return handle_ != nullptr; }
  void launch(const Stream& stream) const;

 private:
  CUgraphExec_st* handle_ = nullptr;
};

}  // namespace mneme
