// Drops that a device has made at steps of a sequence and that its MethodState and SequenceCache do not know of yet.
// They learn of them in MethodState::settle(), which everybody calls who asks what is stored: forks, sessions, other
// methods, statistics.
#pragma once

#include <cstdint>
#include <memory>

#include "src/base/check.h"

namespace mneme {

class MethodState;
class SequenceCache;

class LateDrops {
 public:
  virtual ~LateDrops() = default;
  // Whether the host has something to learn.
  virtual bool any() const = 0;
  // Whether a decode step of `cache`, already extended, may run before the host learns.
  virtual bool continues(const SequenceCache& cache) const = 0;
  // Tokens that a KV head attends in the present step.
  virtual std::int32_t attended(std::int32_t layer, std::int32_t kv_head) const = 0;
  // The present step has succeeded, or is taken back.
  virtual void commit() = 0;
  virtual void take_back() = 0;
  // Puts all that is late into the pending decisions of `method`. Waits for the device.
  virtual void learn(MethodState& method, const SequenceCache& cache) = 0;
};

// A state's own: a copy of the state begins without. Requires  (copy) nothing is late.
class LateDropsOwner {
 public:
  LateDropsOwner() = default;
  ~LateDropsOwner() = default;
  LateDropsOwner(const LateDropsOwner& other) {
    MNEME_CHECK(!other.any(), "a copy of a state that has to settle() first");
  }
  LateDropsOwner& operator=(const LateDropsOwner& other) {
    if (this != &other) *this = LateDropsOwner(other);
    return *this;
  }
  LateDropsOwner(LateDropsOwner&&) noexcept = default;
  LateDropsOwner& operator=(LateDropsOwner&&) noexcept = default;

  LateDrops* get() const { return drops_.get(); }
  bool any() const { return drops_ != nullptr && drops_->any(); }
  void set(std::unique_ptr<LateDrops> drops) { drops_ = std::move(drops); }

 private:
  std::unique_ptr<LateDrops> drops_;
};

}  // namespace mneme
