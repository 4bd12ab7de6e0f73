// Prefixes in flight: before each step, requests that still compute their prompts take what any other sequence has
// computed of them by then, and wait for what an earlier one is about to compute.
//
// Sources   cached sequences and slots (SequenceKeeper), and the computed part of every prompt that is being read.
// Waiting   A request waits for one that goes before it in the scheduler's order (higher priority, or the same and
//           earlier) and computes at least a page more of its prompt than anybody has. It waits for the shared part
//           alone, not for the rest of that prompt or its answer. The scheduler gives prompt tokens out in the same
//           order, so waiting never delays a request beyond the moment at which its own prefill would have gone on:
//           the earlier prompt goes first in any case. Requests that share nothing are not affected, and a request
//           that waits keeps its position in the queue.
// Memory    Pages are shared when a request can begin, or is the next that will: those behind it hold none, so that what
//           they want can be evicted for it.
// Running   A request that began, and whose prompt a more urgent one reads as well, waits in the same way, but only for
//           one that runs: a request without memory must not wait for one that keeps its own.
//
// Threads  the engine's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/engine/loop/generation.h"
#include "src/engine/loop/prefix_cache.h"
#include "src/engine/loop/sequence_keeper.h"
#include "src/engine/session/running_model.h"

namespace mneme {

class PrefixWaits {
 public:
  using Source = SequenceKeeper::Source;

  // Requires  both outlive the object.
  PrefixWaits(RunningModel& model, SequenceKeeper& keeper) : model_(model), keeper_(keeper) {}

  // A request was submitted and has computed nothing.
  //
  // Requires  `input` outlives the entry.
  void add(RequestId id, const GenerationInput& input);
  // Its prompt is computed, or it has ended.
  void forget(RequestId id);
  // Before a step: shares, holds and lets go. Only requests that the step may reach are looked at. Returns the tokens
  // that requests which run took over in the middle of their prompts.
  std::int64_t plan();
  // Requests that wait for another's prefix.
  std::int64_t waiting() const { return waiting_; }

 private:
  // By priority and arrival, as the scheduler computes prompts.
  using Rank = std::pair<std::int64_t, RequestId>;
  struct Prompt {
    const GenerationInput* input;
    bool fetched = false;          // what lower tiers have of it was asked for, once
    bool leads = false;            // others may take what it computes
    std::int32_t most = 0;         // tokens that it may take from others
    std::optional<Source> leader;  // what it waits for (a request, or pages from the disk), and for how much
  };
  static Rank rank_of(RequestId id, const GenerationInput& input) { return {-std::int64_t{input.priority}, id}; }
  std::int32_t computed(RequestId id) const;
  bool still_waits(const Prompt& prompt, bool runs) const;
  std::uint64_t look_around();
  Source best_source(RequestId id, const Prompt& prompt, std::int32_t own);
  std::optional<Source> leader_of(const Rank& rank, const Prompt& prompt, std::int32_t own, bool runs);
  // What the requests of a step may still take: sequence slots, and blocks that are not reserved.
  struct Room {
    std::int32_t requests = 0;
    std::int64_t blocks = 0;
    bool first = true;  // no request that waits to start has been looked at
  };
  std::int64_t look_at(const Rank& rank, Prompt& prompt, Room& room);

  RunningModel& model_;
  SequenceKeeper& keeper_;
  std::map<Rank, Prompt> prompts_;
  std::unordered_map<RequestId, Rank> ranks_;
  PrefixCache tree_;                // of all prompts_
  std::vector<RequestId> readers_;  // that lead, and have computed a page at least; of the last look_around()
  std::uint64_t changes_ = 0, seen_ = 0;
  std::int64_t waiting_ = 0;
};

}  // namespace mneme
