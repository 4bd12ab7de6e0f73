// The engine's step loop, shared by threads that wait for answers.
//
// There is no thread of its own: of the threads that wait for news, one runs the next step for all requests, so that
// answers asked for at once are computed in one batch, and a single caller pays no thread switch. Whoever wants the
// engine for something else (submit, fork, save) gets it between two steps, before the next one.
//
// An engine loop (src/engine/loop) may drive the same engine from a thread of its own: it steps within exclusive(), and
// takes the events of all requests that have no listener, whoever steps.
//
//   thread A   exclusive: submit(a) ── step ──────── step ── takes a's news ── step ──
//   thread B        exclusive: submit(b) ─┘ waits ────┘ takes b's news ── waits ──┘
//
// Threads  any. A request that runs goes on while others step, whether its owner looks at its news or not.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "src/base/function_ref.h"
#include "src/engine/engine.h"

namespace mneme {

class StepLoop {
 public:
  // Takes the events of one request, on whichever thread steps, with the engine to itself: it may stop the request.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_event(Engine& engine, const RequestEvent& event) = 0;
    // Called after the step, under the loop's lock, as the last thing that the step does with the listener. What
    // on_event() noted may be shown to the owner from here on, and the owner may then destroy the listener. Shown
    // any earlier, the step would still write to a listener that is gone.
    virtual void publish() {}

   private:
    friend class StepLoop;
    // Guarded by the loop's mutex.
    bool deliveries_ = false;     // on_event() was called since the owner looked
    std::exception_ptr failure_;  // of on_event()
  };

  // The engine outlives the loop.
  explicit StepLoop(Engine& engine) : engine_(engine) {}
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  // Runs `task` with the engine to itself, between two steps. Errors  what `task` throws.
  void exclusive(FunctionRef<void(Engine&)> task);
  // From now on `listener` gets the events of `id`; null: they are dropped. Within exclusive() only.
  void listen(RequestId id, Listener* listener);

  // Takes the events of a step that no listener takes, with the engine to itself. `seconds`: what the step took.
  using Others = std::function<void(std::vector<RequestEvent> events, double seconds)>;
  // From now on `others` gets them; empty: they are dropped. Not within exclusive().
  void deliver_others(Others others);
  // Runs one step. Within exclusive() only.
  //
  // Errors  what Engine::step() throws.
  void step_now();

  // Runs `task` under the lock that publish() is called under. Waits for no step.
  void with_lock(FunctionRef<void()> task);

  // Returns when there is news for `listener`, or after a step without any; steps if no other thread does.
  //
  // Errors  what on_event() threw for it; what Engine::step() throws, on the thread that stepped: the others try again.
  void advance(Listener& listener);

 private:
  void step(std::unique_lock<std::mutex>& lock);

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = false;        // a thread has the engine
  std::int64_t wanted_ = 0;  // threads that wait in exclusive(): they go first
  std::int64_t steps_ = 0;
  // Changed and read by the thread that has the engine.
  std::unordered_map<RequestId, Listener*> listeners_;
  Others others_;
};

}  // namespace mneme
