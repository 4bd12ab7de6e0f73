// What is behind the public Session (include/mneme/mneme.h).
#pragma once

#include <memory>
#include <optional>

#include "src/engine/language_model_impl.h"
#include "src/engine/session_file.h"

namespace mneme {

struct Session::Impl {
  std::shared_ptr<LanguageModel::Impl> model;
  RequestId id;                          // of the kept sequence; none before the first turn
  bool answered = false;                 // the sequence ends with an answer, which the next turn has to close
  Framing framing = Framing::kChat;      // of the last turn
  std::optional<Turn> document;          // read, and waiting for its question
  std::optional<RandomPosition> random;  // of the last turn that drew: the next one goes on from there

  Engine& engine() const { return *model->engine; }

  void start(RequestInput input);
  RequestInput input_of(const Turn& turn, const AskOptions& how) const;
  // Steps until the answer is there. When an exception leaves (a callback's, or the engine's), the sequence stays as it
  // is.
  void generate(Answer& answer, const GenerationOptions& options, const AskCallbacks& callbacks);

 private:
  void run_steps(Answer& answer, const GenerationOptions& options, const AskCallbacks& callbacks);
};

}  // namespace mneme
