// Which drafter an answer has: what was asked for, or the engine's default where the answer can have drafts.
#pragma once

#include <memory>
#include <optional>

#include "mneme/options.h"
#include "src/engine/engine.h"
#include "src/engine/speculation/drafter.h"

namespace mneme {

// asked: of this answer; absent: EngineOptions::speculation. plan: of its method; null: full attention. Null: no drafts.
//
// Errors  kOption: asked for, and the answer cannot have drafts.
std::shared_ptr<Drafter> drafter_of(const Engine& engine, const std::optional<SpeculationOptions>& asked,
                                    const Plan* plan);

// Errors  kOption: `speculation` of the engine's options is on, and answers under `plan` cannot have drafts.
void check_speculation(const Engine& engine, const Plan* plan);

}  // namespace mneme
