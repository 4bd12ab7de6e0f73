#include "src/model/cuda/step/graphs.h"

namespace mneme {

void StepGraphs::forget() {
  launch_.phases = nullptr;  // a graph's
  graphs_.clear();
}

void StepGraphs::follow(std::int32_t generation) {
  if (generation != generation_) forget();
  generation_ = generation;
}

void StepGraphs::time_phases(bool on) {
  times_phases_ = on;
  forget();
}

void StepGraphs::run(const Shape& shape, const std::function<void()>& launches) {
  const auto [it, fresh] = graphs_.try_emplace(shape);
  GraphOfStep& step = it->second;
  launch_.phases = times_phases_ ? &step.phases : nullptr;
  if (fresh) return launches();
  if (!step.graph) step.graph = Graph::capture(launch_.stream, launches);
  step.graph.launch(launch_.stream);
}

void StepGraphs::run_directly(const std::function<void()>& launches) {
  launch_.phases = times_phases_ ? &launched_phases_ : nullptr;
  launches();
}

}  // namespace mneme
