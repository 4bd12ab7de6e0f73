// States of one sequence in layers that have a state of one size in place of keys and values: the one that grows with
// the sequence, and copies of it at lengths that the sequence can be cut back to.
//
// A state is memory of its own, made by PagePool::make_state(), and holds as many blocks of the pool, so that counting
// blocks counts states. Forks and copies share a state; a write to a shared one copies it first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/kv/page_pool.h"

namespace mneme {

class RecurrentStates {
 public:
  explicit RecurrentStates(PagePool& pool) : pool_(&pool) {}
  ~RecurrentStates() { cut(0); }
  RecurrentStates(RecurrentStates&& other) noexcept;
  RecurrentStates& operator=(RecurrentStates&& other) noexcept;
  RecurrentStates(const RecurrentStates&) = delete;
  RecurrentStates& operator=(const RecurrentStates&) = delete;
  RecurrentStates fork() const;

  bool any() const { return pool_->shape().state_bytes > 0; }
  // Free blocks that make_writable() takes.
  std::int64_t blocks_needed() const {
    return any() && (!now_.values || is_shared()) ? pool_->shape().state_blocks() : 0;
  }
  // Requires  so many are free. A state that was never written is zeros.
  void make_writable();
  // The state, which is of no length until end_write(). Requires  make_writable() since the last fork() or keep().
  StateValues& begin_write();
  void end_write(std::int32_t length) { now_.length = length; }
  // Takes the state for that of so many tokens, whatever it is: of benchmarks, whose keys are random too.
  void assume(std::int32_t length) {
    if (now_.values) begin_write(), end_write(length);
  }

  // Tokens whose state this is; -1: a step that wrote to it failed.
  std::int32_t length() const { return now_.length; }
  // The longest length up to `length` that cut() can go back to.
  std::int32_t longest(std::int32_t length) const;
  // Requires  longest(length) == length.
  void cut(std::int32_t length);

  // Remembers the state as it is. Beyond kMaxKept the copy whose loss costs the fewest tokens is forgotten.
  void keep();
  static constexpr std::int32_t kMaxKept = 8;
  // Forgets all copies. Returns whether there was one.
  bool forget_kept();
  std::int32_t last_kept() const { return kept_.empty() ? 0 : kept_.back().length; }

  // Blocks held, those that others hold too included.
  std::int64_t n_blocks() const;
  // Every reference that this holds: the blocks of a state that was kept and not written since are here twice.
  std::vector<BlockId> references() const;

 private:
  struct State {
    std::shared_ptr<StateValues> values;  // null: zeros, of no tokens
    std::vector<BlockId> blocks;
    std::int32_t length = 0;
  };
  bool is_shared() const { return pool_->references(now_.blocks.front()) > 1; }
  void retain(const State& state) const;
  void release(State& state);

  PagePool* pool_;
  State now_;
  std::vector<State> kept_;  // by length
};

}  // namespace mneme
