#include "src/model/cuda/delta/states.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {

class CudaStates::State final : public StateValues {
 public:
  explicit State(std::shared_ptr<CudaStates> of) : states(std::move(of)) {}
  ~State() override {
    if (slot >= 0) states->slots_[static_cast<std::size_t>(slot)] = nullptr;
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  std::byte* host() override { MNEME_CHECK(false, "a state on the device, read by the host"); }

  std::shared_ptr<CudaStates> states;
  std::int32_t slot = -1;         // -1: it is in `moved`
  mutable std::int64_t used = 0;  // the last step
  PinnedBuffer moved;
};

CudaStates::CudaStates(std::size_t state_bytes, std::int32_t n_slots, const Stream& stream)
    : state_bytes_(state_bytes),
      stream_(stream),
      memory_(state_bytes * static_cast<std::size_t>(n_slots),
              "states of layers with linear attention (max_sequences makes them fewer)"),
      slots_(static_cast<std::size_t>(n_slots), nullptr) {}

// Gives a state a slot, whose content is undefined: a free one, or that of the state used longest ago, before step `before`.
std::int32_t CudaStates::take_slot(State& state, std::int64_t before) {
  std::size_t best = slots_.size();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i] == nullptr) {
      best = i;
      break;
    }
    if (slots_[i]->used < before && (best == slots_.size() || slots_[i]->used < slots_[best]->used)) best = i;
  }
  MNEME_CHECK(best < slots_.size(), "{} states in one step, as many as there are slots", slots_.size());
  if (State* other = slots_[best]; other != nullptr) {
    other->moved = PinnedBuffer(state_bytes_);
    copy_bytes(other->moved.data(), at(other->slot), state_bytes_, stream_);
    stream_.synchronize();
    other->slot = -1;
    ++moved_;
  }
  slots_[best] = &state;
  state.slot = static_cast<std::int32_t>(best);
  state.used = step_;
  return state.slot;
}

std::shared_ptr<StateValues> CudaStates::make(const std::shared_ptr<CudaStates>& states, const StateValues* from) {
  MNEME_CHECK(states != nullptr, "a state in a pool without states");
  auto state = std::make_shared<State>(states);
  const auto* source = static_cast<const State*>(from);
  std::byte* to = states->at(states->take_slot(*state, states->step_ + 1));
  if (source == nullptr) {
    set_bytes(to, 0, states->state_bytes_, states->stream_);
  } else if (source->slot >= 0) {
    copy_bytes(to, states->at(source->slot), states->state_bytes_, states->stream_);
  } else {  // perhaps just now, to make room
    copy_bytes(to, source->moved.data(), states->state_bytes_, states->stream_);
    states->stream_.synchronize();  // before its memory may be free
  }
  // What is copied is kept, or a fork's: the copy goes on.
  if (source != nullptr) source->used = std::min(source->used, states->step_ - 1);
  return state;
}

std::int32_t CudaStates::slot_of(StateValues& values) {
  auto& state = static_cast<State&>(values);
  state.used = step_;
  if (state.slot >= 0) return state.slot;
  const std::int32_t slot = take_slot(state, step_);
  copy_bytes(at(slot), state.moved.data(), state_bytes_, stream_);
  stream_.synchronize();  // before its memory is free
  state.moved = {};
  return slot;
}

}  // namespace mneme
