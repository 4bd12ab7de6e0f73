// The engine's side of several ranks: what the leader tells, and what followers repeat.
#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/underlying.h"
#include "src/engine/engine_impl.h"

namespace mneme {

RankLink* Engine::ranks() const {
  return impl_->ranks;
}

// Heads drop tokens of their own: their pages come free at other times on other ranks.
bool Engine::Impl::room_may_differ() const {
  // Stages have unlike numbers of layers.
  if (ranks->split() == RankSplit::kLayers) return true;
  return std::any_of(requests.begin(), requests.end(), [](const auto& entry) {
    const Request& r = *entry.second;
    return r.holds_sequence() && (r.cache.dropped() || (r.method && r.method->late().any()));
  });
}

void Engine::Impl::tell(RankCall call, FunctionRef<void(ByteWriter&)> arguments) {
  if (ranks != nullptr && ranks->leads()) ranks->call(call, room_may_differ(), arguments);
}

// What ends or holds a request is also called by destructors. Where the ranks have stopped nobody is left to be told, and
// the next step says so.
void Engine::Impl::tell(RankCall call, RequestId id) {
  try {
    tell(call, [id](ByteWriter& out) { out.put(id.value); });
  } catch (const RanksStopped&) {
  }
}

void Engine::Impl::tell_input(RankCall call, RequestId from, std::int32_t n_shared, const RequestInput& input) {
  tell(call, [&](ByteWriter& out) {
    out.put(from.value);
    out.put(n_shared);
    rank_requests.write(input, out);
  });
}

void Engine::Impl::close_pages_without_room(Request& request) {
  if (!agreed(reserved_blocks() <= pool->n_free())) request.close_pages();
  // Pages of a window that the request took back, or that a running one owned alone, are promised to others.
  if (pool->windows().n_layers() > 0 && !has_unpromised(0)) request.truncate(0);
}

namespace {

// Impl: Engine::Impl, which is the engine's own.
template <typename Impl>
void repeat(Engine& engine, Impl& e, RankCall call, ByteReader& in) {
  const auto id = [&in] { return RequestId(in.read<std::int64_t>("a request")); };
  const auto number = [&in] { return in.read<std::int32_t>("a number of tokens"); };
  const auto shape = [&engine] { return engine.method_shape(); };
  const bool later_stage = e.ranks->split() == RankSplit::kLayers;
  const auto input = [&] { return e.rank_requests.read(in, shape, later_stage); };
  // Arguments are read in the order in which they were written.
  if (call <= RankCall::kKeepGoing) {
    const RequestId from = id();
    const std::int32_t n_shared = number();
    if (call == RankCall::kSubmit) engine.submit(input());
    if (call == RankCall::kFork) engine.fork(from, input());
    if (call == RankCall::kForkPrefix) engine.fork_prefix(from, n_shared, input());
    if (call == RankCall::kKeepGoing) engine.keep_going(from, input());
  } else if (call == RankCall::kTakePrefix) {
    const RequestId to = id(), from = id();
    engine.take_prefix(to, from, number());
  } else if (call == RankCall::kAttach) {
    const RequestId to = id();
    engine.attach_method(to, e.rank_requests.read_plan(in, shape, later_stage));
  } else if (call == RankCall::kAdoptPrefix) {
    const RequestId from = id();
    const std::int32_t n_shared = number();
    std::vector<std::int32_t> tokens(number());
    in.fill(std::span(tokens), "tokens");
    engine.adopt_prefix(std::move(tokens), from, n_shared);
  } else if (call == RankCall::kStep) {
    e.ranks->set_prompt_limit(number());
    engine.step();
  } else {
    const RequestId of = id();
    if (call == RankCall::kHold) engine.hold(of);
    if (call == RankCall::kUnhold) engine.unhold(of);
    if (call == RankCall::kCancel) engine.cancel(of);
    if (call == RankCall::kStop) engine.stop(of);
  }
}

}  // namespace

bool Engine::follow(FunctionRef<void(std::uint8_t call, std::span<const std::byte> arguments)> other) {
  MNEME_CHECK(impl_->follows(), "this engine repeats nobody's calls");
  const auto [call, bytes] = impl_->ranks->next_call();
  if (call == RankCall::kEnd) return false;
  try {
    if (call >= RankCall::kSave) {
      other(underlying(call), bytes);
    } else {
      ByteReader in(bytes, "a call of rank 0");
      repeat(*this, *impl_, call, in);
    }
  } catch (const std::exception& e) {
    impl_->ranks->ranks().abort(e.what());
    throw;
  }
  return true;
}

}  // namespace mneme
