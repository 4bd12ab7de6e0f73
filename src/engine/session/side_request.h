// A request beside the sessions, for its logits or scores; it is gone when this is.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "src/base/function_ref.h"
#include "src/engine/session/step_loop.h"

namespace mneme {

class SideRequest final : public StepLoop::Listener {
 public:
  explicit SideRequest(StepLoop& loop) : loop_(loop) {}
  ~SideRequest() override {
    loop_.exclusive([&](Engine& engine) {
      loop_.listen(id_, nullptr);
      engine.cancel(id_);
    });
  }
  SideRequest(const SideRequest&) = delete;
  SideRequest& operator=(const SideRequest&) = delete;

  // Within exclusive().
  void begin(Engine& engine, const Origin& origin, RequestInput input) {
    id_ = engine.start(origin, std::move(input));
    loop_.listen(id_, this);
  }
  // False: `gives_up`, asked before every step, ended it.
  bool run(FunctionRef<bool()> gives_up) {
    while (!ended_ && !gives_up()) loop_.advance(*this);
    return ended_;
  }
  void on_event(Engine& engine, const RequestEvent& event) override {
    if (!event.finished) return;
    const auto scores = engine.prompt_scores(id_);
    scores_.assign(scores.begin(), scores.end());
    ended_ = true;
  }
  // RequestInput::score_prompt.
  std::vector<PromptScore>& scores() { return scores_; }

 private:
  StepLoop& loop_;
  RequestId id_;
  std::vector<PromptScore> scores_;
  std::atomic<bool> ended_ = false;
};

}  // namespace mneme
