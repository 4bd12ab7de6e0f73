// A thread that steps the engine for many callers: takes orders from any thread, steps while there is work, and hands
// news out once a step. Sessions of language_model() use the same engine, between its steps and in the same batches.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "src/engine/loop/generation_table.h"

namespace mneme {

class EngineLoop {
 public:
  // Called on the engine's thread; has to pass the news on and return.
  using Deliver = std::function<void(std::vector<Delivery>)>;

  struct Options {
    std::int64_t max_in_flight = 1;  // answers, running and waiting
    double stream_seconds = 0;       // pieces of answers wait so long for others; first and last ones never
    KeeperOptions keeper;
    // Called once, on the engine's thread, after what ran and waited was told: the device has failed, and the loop
    // answers whatever comes with that.
    std::function<void(const Failure&)> on_broken = [](const Failure&) {};
  };
  // Starts the model on the new thread, which becomes one of those that compute, and returns when it is ready.
  //
  // Errors  what `start` throws.
  EngineLoop(std::function<RunningModel()> start, Options options, LoopMetrics& metrics, Deliver deliver);
  // Ends what runs, untold.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // What does not change while the model runs. Of the engine only options(), pool().n_blocks(),
  // pool().shape() and method_shape().
  const RunningModel& model() const { return LanguageModelAccess::shared(*model_); }
  // For sessions, which share the engine and its steps with the loop; they may outlive it.
  const LanguageModel& language_model() const { return *model_; }

  // None: there are max_in_flight already.
  std::optional<GenerationId> submit(GenerationInput input, std::shared_ptr<GenerationSink> sink);
  void cancel(GenerationId id);
  void fail_all(Failure failure);
  // Runs `task` between two steps, and then, when the gauges tell what it did, what it returns. Dropped untold when the
  // loop ends first.
  void call(std::function<std::function<void()>(SequenceKeeper&)> task);
  std::int64_t in_flight() const { return in_flight_.load(); }

 private:
  using Task = std::function<void(GenerationTable&, SequenceKeeper&)>;
  void push(Task task);
  void run(std::function<RunningModel()> start);
  void serve(SharedModel& model, SequenceKeeper& keeper);
  bool take_tasks(std::vector<Task>& tasks, bool wait);
  void hold(std::vector<Delivery> news);
  void hand_out(GenerationTable& table);

  Options options_;
  LoopMetrics& metrics_;
  Deliver deliver_;
  std::optional<LanguageModel> model_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Task> tasks_;
  std::vector<Delivery> held_;                                        // by the loop
  std::unordered_map<const GenerationSink*, std::size_t> last_held_;  // of each
  GenerationTable::Clock::time_point handed_out_;
  bool ready_ = false, ends_ = false;
  std::exception_ptr start_error_;
  std::atomic<std::int64_t> in_flight_ = 0, next_id_ = 0;
  std::thread thread_;
};

}  // namespace mneme
