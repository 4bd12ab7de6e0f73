// What is behind the public ModelFile and LanguageModel (include/mneme/mneme.h).
#pragma once

#include <memory>

#include "mneme/mneme.h"
#include "src/checkpoint/checkpoint.h"
#include "src/engine/running_model.h"

namespace mneme {

struct ModelFile::Impl {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<TextSide> text;
};

struct LanguageModel::Impl : RunningModel {};

}  // namespace mneme
