#include "src/engine/speculation/speculation.h"

#include "src/base/error.h"
#include "src/engine/speculation/ngram_drafter.h"

namespace mneme {
namespace {

void check(const Engine& engine, const SpeculationOptions& options, const Plan* plan) {
  const std::string reason = engine.no_drafts_reason(plan);
  if (options.on() && !reason.empty())
    fail(ErrorKind::kOption, "speculative {}: {}; or leave it out", speculation_text(options), reason);
}

}  // namespace

std::shared_ptr<Drafter> drafter_of(const Engine& engine, const std::optional<SpeculationOptions>& asked,
                                    const Plan* plan) {
  if (asked) check(engine, *asked, plan);
  const SpeculationOptions& options = asked ? *asked : engine.options().speculation;
  if (!options.on() || !engine.no_drafts_reason(plan).empty()) return nullptr;
  return std::make_shared<NgramDrafter>(options);
}

void check_speculation(const Engine& engine, const Plan* plan) {
  check(engine, engine.options().speculation, plan);
}

}  // namespace mneme
