// The generations that the engine works on: into requests, and their events back into news for who asked.
//
// Threads  whoever has the engine: everything but construction and destruction is called within the step loop's
//          exclusive(). A session's thread that steps delivers events here too.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "src/base/error.h"
#include "src/base/function_ref.h"
#include "src/base/strong_id.h"
#include "src/engine/answer/answer_stream.h"
#include "src/engine/loop/generation.h"
#include "src/engine/loop/loop_metrics.h"
#include "src/engine/loop/prefix_waits.h"
#include "src/engine/loop/read_counter.h"
#include "src/engine/loop/sequence_keeper.h"
#include "src/engine/session/language_model_impl.h"

namespace mneme {

using GenerationId = StrongId<struct GenerationIdTag, std::int64_t>;

struct Delivery {
  std::shared_ptr<GenerationSink> sink;
  GenerationEvent event;
};

class GenerationTable {
 public:
  using Clock = std::chrono::steady_clock;

  // Takes the events of the model's step loop that no session takes.
  //
  // Requires  all outlive the table.
  GenerationTable(SharedModel& model, SequenceKeeper& keeper, LoopMetrics& metrics);
  ~GenerationTable();
  GenerationTable(const GenerationTable&) = delete;
  GenerationTable& operator=(const GenerationTable&) = delete;

  // Wrong input is told as a failure.
  void submit(GenerationId id, GenerationInput input, std::shared_ptr<GenerationSink> sink, Clock::time_point arrived);
  // Ends it before the next step. Nothing is told. Unknown ids are ignored.
  void cancel(GenerationId id);
  void fail_all(const Failure& failure);
  // Ends those whose time is over.
  void expire(Clock::time_point now);
  // One forward pass, when there is something to compute. What it throws fails all generations.
  void step();
  // A device that failed fails at every later call too: what it said, with which all generations since are answered.
  const std::optional<Failure>& broken() const { return broken_; }
  bool idle() const { return choices_.empty() && model_.engine->idle(); }

  // News since the last call, in order.
  std::vector<Delivery> take_deliveries() { return std::exchange(deliveries_, {}); }
  // Answers that ended since the last call.
  std::int64_t take_ended() { return std::exchange(ended_, 0); }
  void report_gauges();

 private:
  struct Generation;
  struct Choice {
    Generation* generation;
    std::int32_t index;
    AnswerStream stream;
    AnswerPiece held;  // where nothing is streamed
    Clock::time_point begun, first_token, last_token;
    bool has_begun = false, has_token = false;
    std::int32_t prompt_done = 0;
    std::vector<double> between;
  };
  struct Generation {
    GenerationId id;
    GenerationInput input;
    std::shared_ptr<GenerationSink> sink;
    Clock::time_point arrived, deadline;
    std::vector<RequestId> requests;  // of choices that have not ended
    std::int32_t open = 0;            // choices that have not ended, those that have not begun included
    bool prompt_reported = false;
  };

  void start(Generation& g, GenerationInput& input);
  Failure failure_of(const Error& e, FailureKind kind);
  RequestInput request_of(const GenerationInput& input, std::int32_t choice) const;
  void add_choice(Generation& g, RequestId id, std::int32_t index);
  void fork_others(Generation& g, RequestId first);
  // An error that `fails` throws fails all generations and is not rethrown: the thread may be a session's.
  void fail_all_where(FunctionRef<void()> fails);
  void run_step();
  void take_all(const std::vector<RequestEvent>& events, double seconds);
  void take(const RequestEvent& event, Clock::time_point now);
  void take_token(Choice& choice, const RequestEvent& event, Clock::time_point now);
  void report_progress(const Generation& g, const RequestEvent& event, double seconds);
  void report_prompt(Generation& g, RequestId id, GenerationEvent& news);
  void end_choice(RequestId id, GenerationEvent news, Clock::time_point now);
  void count(const Choice& choice, StopReason reason, const RequestStats& stats, Clock::time_point now);
  bool keeps(const GenerationInput& input) const;
  SequenceKeeper::Request kept_request(const Generation& g, RequestId id) const;
  void drop(Generation& g);
  void report_reads(RequestId id, GenerationEvent& news) const;
  void count_reads(const Generation& g, RequestId id);
  void stop_counting(const Generation& g, RequestId id);
  void emit(const Generation& g, GenerationEvent event) { deliveries_.push_back({g.sink, std::move(event)}); }

  SharedModel& model_;
  SequenceKeeper& keeper_;
  LoopMetrics& metrics_;
  std::unordered_map<GenerationId, std::unique_ptr<Generation>> generations_;
  std::unordered_map<RequestId, Choice> choices_;
  PrefixWaits waits_;
  ReadCounter reads_;
  std::vector<Delivery> deliveries_;
  std::optional<Failure> broken_;
  std::int64_t ended_ = 0, waiting_ = 0;
};

}  // namespace mneme
