#include "src/kv/recurrent_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/tensor/buffer.h"

namespace mneme {
namespace {

class HostState final : public StateValues {
 public:
  explicit HostState(std::size_t bytes) : values_(bytes) {}
  std::byte* host() override { return values_.data(); }
  const std::byte* values() const { return values_.data(); }

 private:
  Buffer values_;
};

}  // namespace

std::shared_ptr<StateValues> PagePool::make_state(const StateValues* from) const {
  if (memory_ != nullptr) return memory_->make_state(shape_.state_bytes, from);
  auto state = std::make_shared<HostState>(shape_.state_bytes);
  if (from != nullptr)
    std::memcpy(state->host(), static_cast<const HostState*>(from)->values(), shape_.state_bytes);
  else
    std::memset(state->host(), 0, shape_.state_bytes);
  return state;
}

RecurrentStates::RecurrentStates(RecurrentStates&& other) noexcept
    : pool_(other.pool_), now_(std::exchange(other.now_, {})), kept_(std::exchange(other.kept_, {})) {}

RecurrentStates& RecurrentStates::operator=(RecurrentStates&& other) noexcept {
  if (this == &other) return *this;
  cut(0);
  pool_ = other.pool_;
  now_ = std::exchange(other.now_, {});
  kept_ = std::exchange(other.kept_, {});
  return *this;
}

void RecurrentStates::retain(const State& state) const {
  for (const BlockId id : state.blocks) pool_->retain(id);
}

void RecurrentStates::release(State& state) {
  for (const BlockId id : state.blocks) pool_->release(id);
  state = {};
}

RecurrentStates RecurrentStates::fork() const {
  RecurrentStates copy(*pool_);
  copy.now_ = now_;
  copy.kept_ = kept_;
  retain(now_);
  for (const State& s : kept_) retain(s);
  return copy;
}

void RecurrentStates::make_writable() {
  if (blocks_needed() == 0) return;
  State own{.values = pool_->make_state(now_.values.get()), .blocks = {}, .length = now_.length};
  for (std::int64_t i = 0; i < pool_->shape().state_blocks(); ++i) own.blocks.push_back(pool_->allocate());
  release(now_);
  now_ = std::move(own);
}

StateValues& RecurrentStates::begin_write() {
  MNEME_CHECK(now_.values && !is_shared(), "a state of {} tokens that is not writable", now_.length);
  now_.length = -1;
  return *now_.values;
}

std::int32_t RecurrentStates::longest(std::int32_t length) const {
  if (!any()) return length;
  std::int32_t best = now_.length <= length ? std::max(now_.length, 0) : 0;
  for (const State& s : kept_)
    if (s.length <= length) best = std::max(best, s.length);
  return best;
}

void RecurrentStates::cut(std::int32_t length) {
  while (!kept_.empty() && kept_.back().length > length) {
    release(kept_.back());
    kept_.pop_back();
  }
  if (!any() || (length > 0 && now_.length == length)) return;
  release(now_);
  if (length == 0) return;
  MNEME_CHECK(!kept_.empty() && kept_.back().length == length, "no state of {} tokens", length);
  now_ = kept_.back();
  retain(now_);
}

void RecurrentStates::keep() {
  if (!now_.values || now_.length <= last_kept()) return;
  kept_.push_back(now_);
  retain(now_);
  if (std::ssize(kept_) <= kMaxKept) return;
  // Without a copy, what is behind it is computed from the one before.
  const auto cost = [&](std::size_t i) { return kept_[i].length - (i == 0 ? 0 : kept_[i - 1].length); };
  std::size_t least = 0;
  for (std::size_t i = 1; i + 1 < kept_.size(); ++i)
    if (cost(i) < cost(least)) least = i;
  release(kept_[least]);
  kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(least));
}

bool RecurrentStates::forget_kept() {
  const bool any_kept = !kept_.empty();
  for (State& s : kept_) release(s);
  kept_.clear();
  return any_kept;
}

std::int64_t RecurrentStates::n_blocks() const {
  const bool kept_now = !kept_.empty() && kept_.back().values == now_.values;
  const std::int64_t states = std::ssize(kept_) + (now_.values && !kept_now ? 1 : 0);
  return states == 0 ? 0 : states * pool_->shape().state_blocks();
}

std::vector<BlockId> RecurrentStates::references() const {
  std::vector<BlockId> all = now_.blocks;
  for (const State& s : kept_) all.insert(all.end(), s.blocks.begin(), s.blocks.end());
  return all;
}

}  // namespace mneme
