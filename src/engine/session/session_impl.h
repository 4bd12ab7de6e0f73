// What is behind the public Session and TextStream (include/mneme/mneme.h).
#pragma once

#include <memory>
#include <optional>

#include "src/engine/session/language_model_impl.h"
#include "src/engine/session/pending_answer.h"
#include "src/engine/session/session_file.h"

namespace mneme {

struct Session::Impl {
  explicit Impl(std::shared_ptr<LanguageModel::Impl> of);
  // Gives the sequence up.
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::shared_ptr<LanguageModel::Impl> model;
  std::shared_ptr<const Plan> method;       // of turns that name none; null: full attention
  std::shared_ptr<const Plan> last_method;  // of the last turn
  RequestId id;                             // of the kept sequence; none before the first turn
  bool answered = false;                    // the sequence ends with an answer, which the next turn has to close
  Framing framing = Framing::kChat;         // of the last turn
  std::optional<Turn> document;             // read, and waiting for its question
  std::optional<RandomPosition> random;     // of the last turn that drew: the next one goes on from there
  bool streaming = false;                   // a TextStream of this session has not ended

  // Errors  kRequest: a stream of this session has not ended.
  void expect_idle() const;
  // The method of a request that shares what the session computed; null where its keys and values are exact.
  std::shared_ptr<const Plan> plan_beside() const;
  RequestInput input_of(const Turn& turn, const AskOptions& how) const;
  // Of a turn whose prompt is `prompt`.
  RequestInput input_of(const Turn& turn, const AskOptions& how, TextSide::Prompt prompt) const;
  // Submits the turn. Errors  as Session::ask(); the session stands where it stood before then.
  std::unique_ptr<PendingAnswer> start(const Turn& turn, const GenerationOptions& options, const AskOptions& how);
  std::unique_ptr<PendingAnswer> start(const PreparedTurn::Impl& turn, const GenerationOptions& options);
  std::unique_ptr<PendingAnswer> start(RequestInput input, const GenerationOptions& options, const AskOptions& how);
  // Submits `input` as the sequence's next turn.
  std::unique_ptr<PendingAnswer> submit(RequestInput input, PendingAnswer::Rules rules);
  // The answer has ended, or is given up.
  void finish(PendingAnswer& pending);
  // Takes all news, with callbacks. When an exception leaves (a callback's, or the engine's), the sequence stays.
  void run(PendingAnswer& pending, const AskCallbacks& callbacks);
};

struct TextStream::Impl {
  std::shared_ptr<Session::Impl> session;
  std::unique_ptr<PendingAnswer> pending;

  ~Impl();
};

}  // namespace mneme
