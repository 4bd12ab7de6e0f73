// Device time of a decode step by phase, from events between the kernels of its main stream.
//
//   PhaseClock clock;
//   clock.start(stream);                         before the step's first kernel
//   clock.lap(StepPhase::kGemm, stream);         the kernels since the last call were GEMMs
//   ...                                          the step completes
//   clock.seconds()[kAttention]                  of that step
//
// Calls made while a graph is captured become nodes of the graph: each replay times itself. Events keep kernels from
// starting early, so that a timed step is longer than one that is not: phases say where time goes, not how much.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "src/base/underlying.h"
#include "src/cuda/stream.h"

namespace mneme {

enum class StepPhase : std::uint8_t { kGemm, kAppend, kSelection, kRecall, kAttention, kRanks, kSampling, kWait };
inline constexpr std::array kStepPhases = {StepPhase::kGemm,     StepPhase::kAppend,    StepPhase::kSelection,
                                           StepPhase::kRecall,   StepPhase::kAttention, StepPhase::kRanks,
                                           StepPhase::kSampling, StepPhase::kWait};
// "GEMM" (embedding, norms, head included), "append" (RoPE, the store of keys and values), "selection" (of this step,
// its gate included), "recall" (this step waits for pages), "attention", "sums over ranks" (with the wait for slower ones),
// "sampling", "next step's recall" (what of the speculative selection and its recall outlasts the step).
std::string_view phase_name(StepPhase phase);

class PhaseClock {
 public:
  using Seconds = std::array<double, kStepPhases.size()>;

  // Forgets all laps. Events stay, so that a step of as many laps makes none.
  void start(const Stream& stream);
  void lap(StepPhase phase, const Stream& stream);

  // Requires  the step has completed.
  Seconds seconds() const;

 private:
  void record(std::size_t at, const Stream& stream);

  std::vector<Event> events_;  // one more than laps
  std::vector<StepPhase> phases_;
};

}  // namespace mneme
