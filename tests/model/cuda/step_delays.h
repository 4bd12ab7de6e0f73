// Delays of a step's streams, unrelated to its work.
#pragma once

#include <cstdint>

#include "src/model/cuda/retrieval/step_observer.h"
#include "tests/cuda/delays.h"

namespace mneme {

// Every launch that may wait does so at random, up to so many microseconds; 0: none does.
class StepDelays final : public StepObserver {
 public:
  explicit StepDelays(std::int32_t most) : most_(most) {}
  void before_launch(const CudaContext& context) override {
    if (most_ <= 0) return;
    random_ = random_ * 1664525u + 1013904223u;
    wait_cuda(static_cast<std::int32_t>((random_ >> 8) % static_cast<std::uint32_t>(most_)), context);
  }

 private:
  std::int32_t most_;
  std::uint32_t random_ = 1;
};

}  // namespace mneme
