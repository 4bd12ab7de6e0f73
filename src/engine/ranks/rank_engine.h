// An engine that has a part of a model: the leader logs its calls before it makes them, followers repeat the log
// (rank_link.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/engine/engine.h"
#include "src/engine/ranks/rank_link.h"

namespace mneme {

class RankEngine final : public Engine {
 public:
  // Requires  a part's ranks() is not null. Errors  as Engine's; kDevice: as Collective's.
  RankEngine(std::unique_ptr<ForwardPass> part, const EngineOptions& options, std::unique_ptr<ThreadPool> pool);
  // Of the leader: the followers end.
  ~RankEngine() override;

  RequestId start(const Origin& origin, RequestInput input) override;
  void hold(RequestId id) override;
  void unhold(RequestId id) override;
  std::int32_t take_prefix(RequestId id, RequestId from, std::int32_t n_shared) override;
  void cancel(RequestId id) override;
  void stop(RequestId id) override;
  RequestId adopt_prefix(std::vector<std::int32_t> tokens, RequestId from, std::int32_t n_shared) override;
  void attach_method(RequestId id, std::shared_ptr<const Plan> plan) override;
  // A step that fails ends all ranks: they are not the same any more.
  std::vector<RequestEvent> step() override;

 private:
  struct Decisions;  // Impl, with what the ranks decide together

  bool room_may_differ() const;
  // Of the leader: followers repeat this call. Called when nothing can refuse it any more.
  void log(RankCall call, FunctionRef<void(ByteWriter&)> arguments);
  void log(RankCall call, RequestId id);

  RankLink& link_;
};

// Of a follower: repeats the leader's next call, which it waits for. Sessions' calls are `other`'s (session_ranks.h).
// False: the leader has ended.
//
// Errors  kDevice: as Collective's; what a call throws here that did not on the leader.
bool repeat_next_call(Engine& engine, FunctionRef<void(std::uint8_t call, std::span<const std::byte> arguments)> other);

}  // namespace mneme
