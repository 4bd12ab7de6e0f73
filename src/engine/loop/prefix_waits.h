// Requests that arrive together about one document: the first computes it, the others are held until the part that
// they share is computed, and share its pages.
//
// A request waits for one that arrived earlier, has at least its priority, and computes at least a page more of its
// prompt than a cached sequence has. It waits for the shared part alone, not for the rest of that prompt or its answer.
// The scheduler computes prompts in order of priority and arrival, so waiting never delays a request beyond the moment
// at which its own prefill would have started: an earlier prompt goes first in any case. Requests that share nothing are
// not affected, and a held request keeps its position in the queue.
//
// Threads  the engine's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
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

  // The request whose prefill `input` has to wait for, and the tokens that it then shares; none where `source` has as
  // much. To be asked before the request is submitted.
  std::optional<Source> leader_for(const GenerationInput& input, const std::optional<Source>& source);
  // A request was submitted: to compute its prompt for others too, or, with a leader, held until that one has.
  //
  // Requires  `input` outlives the entry.
  void add(RequestId id, const GenerationInput& input, const std::optional<Source>& leader);
  // Its prompt is computed, or it has ended.
  void forget(RequestId id);

  struct Released {
    RequestId id;
    std::int32_t n_tokens = 0;  // of its prompt, that another request has computed
  };
  // Starts in the engine the held requests whose shared part is computed, and those whose leader ended before that and
  // that find no other. In order of arrival.
  std::vector<Released> release();

 private:
  struct Prompt {
    const GenerationInput* input;
    std::optional<Source> leader;
  };
  std::optional<Source> leader_before(const GenerationInput& input, const std::optional<Source>& source,
                                      std::optional<RequestId> before);
  bool computed(const Source& leader) const;

  RunningModel& model_;
  SequenceKeeper& keeper_;
  std::map<RequestId, Prompt> held_;                               // in order of arrival
  std::unordered_map<RequestId, const GenerationInput*> pending_;  // that compute their prompts for others too
  PrefixCache prompts_;                                            // of these
};

}  // namespace mneme
