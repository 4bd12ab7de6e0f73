// CUDA graphs of steps, by shape. The first step of a shape is launched directly, which loads the kernels; the second is
// captured, and later ones are replayed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "src/model/cuda/step/activations.h"

namespace mneme {

class StepGraphs {
 public:
  // Sets launch.phases of the steps that it runs.
  explicit StepGraphs(StepLaunch& launch) : launch_(launch) {}

  // Forgets the graphs of another generation (CudaAttention::generation()).
  void follow(std::int32_t generation);
  // From the next step on, steps are timed by phase. Forgets all graphs.
  void time_phases(bool on);

  // A shape is a number of rows and CudaAttention::graph_kind().
  using Shape = std::pair<std::int32_t, std::int32_t>;
  void run(const Shape& shape, const std::function<void()>& launches);
  // A step that no graph can run.
  void run_directly(const std::function<void()>& launches);

 private:
  struct GraphOfStep {
    Graph graph;  // null until the second step
    PhaseClock phases;
  };
  void forget();

  StepLaunch& launch_;
  std::map<Shape, GraphOfStep> graphs_;
  PhaseClock launched_phases_;  // of run_directly()
  bool times_phases_ = false;
  std::int32_t generation_ = 0;
};

}  // namespace mneme
