// States of sequences on the device (recurrent_state.h): slots of device memory for those that steps run with, host memory
// for the others. A state that needs a slot takes that of the state used longest ago, which moves to host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/cuda/memory.h"
#include "src/kv/page_pool.h"

namespace mneme {

class CudaStates {
 public:
  // Errors  kResource.
  CudaStates(std::size_t state_bytes, std::int32_t n_slots, const Stream& stream);
  CudaStates(const CudaStates&) = delete;
  CudaStates& operator=(const CudaStates&) = delete;

  // A copy of a state of these, or zeros.   Async: enqueued on the stream, but what moves to the host is waited for.
  static std::shared_ptr<StateValues> make(const std::shared_ptr<CudaStates>& states, const StateValues* from);

  // The slot of a state, which stays there until the next begin_step(). Async, as make().
  // Requires  of these; at most n_slots a step.
  void begin_step() { ++step_; }
  std::int32_t slot_of(StateValues& state);

  float* data() const { return memory_.as<float>(); }
  std::size_t bytes() const { return memory_.size(); }
  std::int64_t moved() const { return moved_; }  // states that went to host memory

 private:
  class State;
  std::byte* at(std::int32_t slot) const { return memory_.data() + static_cast<std::size_t>(slot) * state_bytes_; }
  std::int32_t take_slot(State& state, std::int64_t before);

  std::size_t state_bytes_;
  const Stream& stream_;
  DeviceBuffer memory_;
  std::vector<State*> slots_;  // the state in each; null: free
  std::int64_t step_ = 0, moved_ = 0;
};

}  // namespace mneme
