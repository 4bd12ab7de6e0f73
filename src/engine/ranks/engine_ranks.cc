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

void Engine::Impl::tell(RankCall call, RequestId id) {
  tell(call, [id](ByteWriter& out) { out.put(id.value); });
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
}

bool Engine::follow(FunctionRef<void(std::uint8_t call, std::span<const std::byte> arguments)> other) {
  Impl& e = *impl_;
  MNEME_CHECK(e.follows(), "this engine repeats nobody's calls");
  const auto [call, bytes] = e.ranks->next_call();
  ByteReader in(bytes, "a call of rank 0");
  const auto id = [&in] { return RequestId(in.read<std::int64_t>("a request")); };
  const auto shape = [this] { return method_shape(); };
  const bool later_stage = e.ranks->split() == RankSplit::kLayers;
  const auto input_of = [&](auto act) {
    const RequestId from = id();
    const auto n_shared = in.read<std::int32_t>("a number of tokens");
    act(from, n_shared, e.rank_requests.read(in, shape, later_stage));
  };
  try {
    switch (call) {
      case RankCall::kSubmit:
        input_of([&](RequestId, std::int32_t, RequestInput input) { submit(std::move(input)); });
        break;
      case RankCall::kFork:
        input_of([&](RequestId from, std::int32_t, RequestInput input) { fork(from, std::move(input)); });
        break;
      case RankCall::kForkPrefix:
        input_of([&](RequestId from, std::int32_t n, RequestInput input) { fork_prefix(from, n, std::move(input)); });
        break;
      case RankCall::kKeepGoing:
        input_of([&](RequestId from, std::int32_t, RequestInput input) { keep_going(from, std::move(input)); });
        break;
      case RankCall::kHold:
        hold(id());
        break;
      case RankCall::kUnhold:
        unhold(id());
        break;
      case RankCall::kTakePrefix: {
        const RequestId to = id(), from = id();
        take_prefix(to, from, in.read<std::int32_t>("a number of tokens"));
        break;
      }
      case RankCall::kCancel:
        cancel(id());
        break;
      case RankCall::kStop:
        stop(id());
        break;
      case RankCall::kAttach: {
        const RequestId to = id();
        attach_method(to, e.rank_requests.read_plan(in, shape, later_stage));
        break;
      }
      case RankCall::kStep:
        e.ranks->set_prompt_limit(in.read<std::int32_t>("a number of tokens"));
        step();
        break;
      case RankCall::kSave:
      case RankCall::kRestore:
        other(underlying(call), bytes);
        break;
      case RankCall::kEnd:
        return false;
    }
  } catch (const std::exception& e_here) {
    e.ranks->ranks().abort(e_here.what());
    throw;
  }
  return true;
}

}  // namespace mneme
