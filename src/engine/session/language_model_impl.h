// What is behind the public ModelFile and LanguageModel (include/mneme/mneme.h).
#pragma once

#include <memory>
#include <utility>

#include "mneme/mneme.h"
#include "src/engine/session/running_model.h"
#include "src/engine/session/step_loop.h"
#include "src/formats/checkpoint.h"

namespace mneme {

struct ModelFile::Impl {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<TextSide> text;
};

struct PreparedTurn::Impl {
  Turn turn;
  AskOptions how;
  const TextSide* text = nullptr;  // that made the prompt
  TextSide::Prompt prompt;
};

// A running model that sessions of several threads share.
struct SharedModel : RunningModel {
  explicit SharedModel(RunningModel model)
      : RunningModel(std::move(model)), loop(std::make_unique<StepLoop>(*engine)) {}

  std::unique_ptr<StepLoop> loop;
};

struct LanguageModel::Impl : SharedModel {
  using SharedModel::SharedModel;
};

// For those who drive a running model beside its sessions: the engine loop.
struct LanguageModelAccess {
  static LanguageModel make(RunningModel model);
  static SharedModel& shared(const LanguageModel& model);
};

}  // namespace mneme
