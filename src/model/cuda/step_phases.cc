#include "src/model/cuda/step_phases.h"

namespace mneme {

std::string_view phase_name(StepPhase phase) {
  static constexpr std::array<std::string_view, kStepPhases.size()> kNames = {
      "GEMM", "append", "selection", "recall", "attention", "sums over ranks", "sampling", "next step's recall"};
  return kNames[underlying(phase)];
}

void PhaseClock::record(std::size_t at, const Stream& stream) {
  if (at == events_.size()) events_.push_back(Event::make(Event::Timing::kTimed));
  events_[at].record_replayed(stream);
}

void PhaseClock::start(const Stream& stream) {
  phases_.clear();
  record(0, stream);
}

void PhaseClock::lap(StepPhase phase, const Stream& stream) {
  phases_.push_back(phase);
  record(phases_.size(), stream);
}

PhaseClock::Seconds PhaseClock::seconds() const {
  Seconds out{};
  for (std::size_t i = 0; i < phases_.size(); ++i)
    out[underlying(phases_[i])] += events_[i + 1].seconds_since(events_[i]);
  return out;
}

}  // namespace mneme
