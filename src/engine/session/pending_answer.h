// The answer to a turn while it is computed: what its request's events add, and at the end all of it.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/answer/answer_stream.h"
#include "src/engine/session/language_model_impl.h"
#include "src/engine/session/step_loop.h"

namespace mneme {

// Threads  one owner; the loop's threads call on_event(). cancel() may be called by any.
class PendingAnswer final : public StepLoop::Listener {
 public:
  struct Rules {
    std::vector<std::string> stop;
    bool scores = false;  // fill Answer::scores
  };
  // Of one step.
  struct News {
    AnswerPiece piece;
    struct Progress {
      std::int32_t done, total;  // tokens of the prompt
    };
    std::optional<Progress> progress;  // until the answer begins
  };

  PendingAnswer(std::shared_ptr<SharedModel> model, Rules rules);
  // Stops what still runs. The sequence stays.
  ~PendingAnswer() override;
  PendingAnswer(const PendingAnswer&) = delete;
  PendingAnswer& operator=(const PendingAnswer&) = delete;

  // Within the loop's exclusive(): events of `id`, which was just submitted, come here.
  void begin(RequestId id);
  // The oldest news not taken yet; waits for a step where there are none. Absent: that step had none.
  //
  // Errors  as Engine::step().
  std::optional<News> next();
  // Ends the answer before the next step. What was computed until then is part of it.
  void cancel();
  bool done() const { return done_; }  // the last news were taken

  // When done.
  Answer& answer() { return answer_; }
  // Random numbers that the turn drew; absent: none. When done, or abandoned.
  std::optional<RandomPosition> random() const { return random_; }
  // Stops a turn that its owner gives up, and reads random() as it stands.
  void abandon();

  void on_event(Engine& engine, const RequestEvent& event) override;
  void publish() override;

 private:
  // The engine is done with it.
  void end(const Engine& engine);

  std::shared_ptr<SharedModel> model_;
  bool scores_;
  RequestId id_;
  AnswerStream stream_;
  Answer answer_;
  std::optional<RandomPosition> random_;
  bool ended_ = false;
  std::vector<News> arrived_;   // of the step that runs
  std::deque<News> published_;  // guarded by the loop's lock
  std::mutex mutex_;            // guards `cancelled_`
  bool cancelled_ = false;
  bool done_ = false;
};

}  // namespace mneme
