// CUDA streams, events and graphs.
#pragma once

#include <functional>
#include <utility>

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace mneme {

class Event;

// Owns a stream. Errors of enqueued work surface at synchronize(), as kDevice.
class Stream {
 public:
  enum class Priority { kNormal, kHigh };
  Stream() = default;  // null: nothing may be launched on it
  static Stream make(Priority priority = Priority::kNormal);
  ~Stream();
  Stream(Stream&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  Stream& operator=(Stream&& o) noexcept {
    std::swap(handle_, o.handle_);
    return *this;
  }

  CUstream_st* get() const { return handle_; }
  void synchronize() const;
  // Later work of this stream waits for `event`.
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
  // As record(); while `stream` is captured, a node of the graph, so that every replay records the event again.
  void record_replayed(const Stream& stream) const;
  void synchronize() const;
  bool happened() const;
  // Seconds from `begin` to this event. Requires  both were made with kTimed and have completed.
  double seconds_since(const Event& begin) const;

 private:
  CUevent_st* handle_ = nullptr;
};

// An executable graph, captured once and replayed.
class Graph {
 public:
  Graph() = default;
  // Captures what `launches` enqueues on `stream`. Requires  `launches` only enqueues.
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
