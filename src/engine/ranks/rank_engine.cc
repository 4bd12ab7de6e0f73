#include "src/engine/ranks/rank_engine.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/base/underlying.h"
#include "src/engine/engine_impl.h"

namespace mneme {

struct RankEngine::Decisions final : Engine::Impl {
  using Impl::Impl;

  RankLink& link() const { return *forward->ranks(); }
  std::int64_t least_blocks(std::int64_t mine) const override {
    const std::int64_t per_page = forward->kv_shape(kv_dtype_of(options)).blocks_per_page();
    return link().least(mine / per_page) * per_page;
  }
  bool agreed(bool mine) const override { return link().all(mine); }
  void agree_on_step(std::vector<RequestView>& views, std::int64_t& free_blocks,
                     std::int32_t& prompt_tokens) const override {
    link().compare_room(views, free_blocks, pool->shape().blocks_per_page());
    if (!link().leads()) prompt_tokens = link().prompt_limit();
  }
  // The leader's tokens.
  std::vector<Sample> compute(const StepBatch& batch) override {
    std::vector<Sample> samples(batch.wanted.size());
    if (link().leads())
      samples = Impl::compute(batch);
    else
      forward->run(batch.input());
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (!batch.wanted[i].known()) tokens.push_back(samples[i].sampled.token);
    link().share(tokens);
    std::size_t next = 0;
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (!batch.wanted[i].known()) samples[i].sampled.token = tokens[next++];
    return samples;
  }
};

RankEngine::RankEngine(std::unique_ptr<ForwardPass> part, const EngineOptions& options,
                       std::unique_ptr<ThreadPool> pool)
    : Engine(std::make_unique<Decisions>(std::move(part), options, std::move(pool))), link_(*ranks()) {}

RankEngine::~RankEngine() {
  try {
    log(RankCall::kEnd, [](ByteWriter&) {});
  } catch (const Error&) {  // the ranks stopped before
  }
}

// Heads drop tokens of their own: their pages come free at other times on other ranks.
bool RankEngine::room_may_differ() const {
  // Stages have unlike numbers of layers.
  if (link_.split() == RankSplit::kLayers) return true;
  return std::any_of(impl_->requests.begin(), impl_->requests.end(), [](const auto& entry) {
    const Request& r = *entry.second;
    return r.holds_sequence() && (r.cache.dropped() || (r.method && r.method->late().any()));
  });
}

void RankEngine::log(RankCall call, FunctionRef<void(ByteWriter&)> arguments) {
  if (link_.leads()) link_.call(call, room_may_differ(), arguments);
}

// Destructors also call what ends or holds a request. If the ranks have stopped, the call is not logged, and the next
// step reports it.
void RankEngine::log(RankCall call, RequestId id) {
  try {
    log(call, [id](ByteWriter& out) { out.put(id.value); });
  } catch (const RanksStopped&) {
  }
}

RequestId RankEngine::start(const Origin& origin, RequestInput input) {
  impl_->origin_of(origin, input);
  log(RankCall::kStart, [&](ByteWriter& out) {
    out.put(underlying(origin.kind));
    out.put(origin.from.value);
    out.put(origin.n_shared);
    link_.requests().write(input, out);
  });
  return Engine::start(origin, std::move(input));
}

void RankEngine::hold(RequestId id) {
  if (!impl_->find_sequence(id).held) log(RankCall::kHold, id);
  Engine::hold(id);
}

void RankEngine::unhold(RequestId id) {
  const auto it = impl_->requests.find(id);
  if (it != impl_->requests.end() && it->second->held) log(RankCall::kUnhold, id);
  Engine::unhold(id);
}

std::int32_t RankEngine::take_prefix(RequestId id, RequestId from, std::int32_t n_shared) {
  if (impl_->can_take_prefix(id, from, n_shared)) {
    log(RankCall::kTakePrefix, [&](ByteWriter& out) {
      out.put(id.value);
      out.put(from.value);
      out.put(n_shared);
    });
  }
  return Engine::take_prefix(id, from, n_shared);
}

void RankEngine::cancel(RequestId id) {
  const auto it = impl_->requests.find(id);
  if (it != impl_->requests.end() && it->second->holds_sequence()) log(RankCall::kCancel, id);
  Engine::cancel(id);
}

void RankEngine::stop(RequestId id) {
  const auto it = impl_->requests.find(id);
  if (it != impl_->requests.end() && it->second->active()) log(RankCall::kStop, id);
  Engine::stop(id);
}

RequestId RankEngine::adopt_prefix(std::vector<std::int32_t> tokens, RequestId from, std::int32_t n_shared) {
  impl_->check_input({.prompt = tokens, .max_tokens = 0}, {});
  log(RankCall::kAdoptPrefix, [&](ByteWriter& out) {
    out.put(from.value);
    out.put(n_shared);
    out.put(size32(tokens));
    out.put_all(tokens);
  });
  return Engine::adopt_prefix(std::move(tokens), from, n_shared);
}

void RankEngine::attach_method(RequestId id, std::shared_ptr<const Plan> plan) {
  check_method(impl_->find_sequence(id), plan);
  log(RankCall::kAttach, [&](ByteWriter& out) {
    out.put(id.value);
    link_.requests().write_plan(plan, out);
  });
  Engine::attach_method(id, std::move(plan));
}

std::vector<RequestEvent> RankEngine::step() {
  if (!impl_->all_held()) log(RankCall::kStep, [&](ByteWriter& out) { out.put(impl_->chunk.tokens()); });
  try {
    return Engine::step();
  } catch (const std::exception& e) {
    link_.ranks().abort(e.what());
    throw;
  }
}

namespace {

void repeat(Engine& engine, RankLink& link, RankCall call, ByteReader& in) {
  const auto id = [&in] { return RequestId(in.read<std::int64_t>("a request")); };
  const auto number = [&in] { return in.read<std::int32_t>("a number of tokens"); };
  const auto shape = [&engine] { return engine.method_shape(); };
  const bool later_stage = link.split() == RankSplit::kLayers;
  // Arguments are read in the order in which they were written.
  if (call == RankCall::kStart) {
    Origin origin{.kind = static_cast<Origin::Kind>(in.read<std::uint8_t>("an origin"))};
    origin.from = id();
    origin.n_shared = number();
    engine.start(origin, link.requests().read(in, shape, later_stage));
  } else if (call == RankCall::kTakePrefix) {
    const RequestId to = id(), from = id();
    engine.take_prefix(to, from, number());
  } else if (call == RankCall::kAttach) {
    const RequestId to = id();
    engine.attach_method(to, link.requests().read_plan(in, shape, later_stage));
  } else if (call == RankCall::kAdoptPrefix) {
    const RequestId from = id();
    const std::int32_t n_shared = number();
    std::vector<std::int32_t> tokens(number());
    in.fill(std::span(tokens), "tokens");
    engine.adopt_prefix(std::move(tokens), from, n_shared);
  } else if (call == RankCall::kStep) {
    link.set_prompt_limit(number());
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

bool repeat_next_call(Engine& engine,
                      FunctionRef<void(std::uint8_t call, std::span<const std::byte> arguments)> other) {
  RankLink* const link = engine.ranks();
  MNEME_CHECK(link != nullptr && !link->leads(), "this engine repeats no other's calls");
  const auto [call, bytes] = link->next_call();
  if (call == RankCall::kEnd) return false;
  try {
    if (call >= RankCall::kSave) {
      other(underlying(call), bytes);
    } else {
      ByteReader in(bytes, "a call of rank 0");
      repeat(engine, *link, call, in);
    }
  } catch (const std::exception& e) {
    link->ranks().abort(e.what());
    throw;
  }
  return true;
}

}  // namespace mneme
