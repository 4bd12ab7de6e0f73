// Which tokens the next step computes. A pure function of a snapshot: no engine, no model, no clock, so that every rule
// is a test of a few lines.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/base/strong_id.h"

namespace mneme {

using RequestId = StrongId<struct RequestIdTag, std::int64_t>;

enum class RequestPhase : std::uint8_t { kWaiting, kPrefill, kDecode };

// What the scheduler may know of a request.
struct RequestView {
  RequestId id;
  RequestPhase phase = RequestPhase::kWaiting;
  std::int32_t tokens_left = 0;  // prompt tokens not yet computed (waiting, prefill); 1 in decode
  // A prompt that is read in windows: rows of the first one that is left, and of all others; 1: cut it anywhere.
  std::int32_t first_window = 1, window = 1;
  std::int64_t blocks_to_end = 0;  // pool blocks that it may still take until its last token, the worst case
  std::int32_t most_rows = 0;      // in one step; 0: as many as fit
  std::int32_t priority = 0;       // larger first; equal: the older first
  bool held = false;               // runs, and waits for another's prefix: no rows; its reservation stays
  // At most group_limit requests of a group run at once; 0: any number. One that waits for that delays no other.
  std::int32_t group = 0, group_limit = 0;
  bool blocked = false;  // waits for its group (Engine::views(); schedule() counts itself)
};

struct SchedulerSnapshot {
  std::span<const RequestView> requests;  // in order of arrival, ended ones gone
  std::int64_t free_blocks = 0;           // in the pool, reserved ones included
};

struct SchedulerLimits {
  std::int32_t max_sequences = 16;                                            // running (prefill or decode) at once
  std::int32_t max_batched_tokens = 1024;                                     // in one step
  std::int32_t max_prompt_tokens = std::numeric_limits<std::int32_t>::max();  // of these, in a step with answers
};

struct ScheduledTokens {
  RequestId id;
  std::int32_t n_tokens = 0;
};

// Running requests by group, of those that have a limit.
class GroupCounts {
 public:
  explicit GroupCounts(std::span<const RequestView> requests);
  bool full(const RequestView& r) const;
  void add(const RequestView& r) { n_[r.group] += r.group_limit > 0 ? 1 : 0; }

 private:
  std::unordered_map<std::int32_t, std::int32_t> n_;
};

// Rows of the next step, decode first, then prefill chunks in order of priority and arrival.
//
// * Every running decode request gets its token: one that has started to answer waits for no other's prompt, but for
//   those of higher priority. Where max_sequences run and one waits that is more urgent than one of them, and fits, the
//   least urgent (the latest of equals) gets no rows until there is a sequence slot again; it keeps its pages.
// * What is left of max_batched_tokens (at least one token, if there is prefill work) goes to prefill.
// * A prompt that is read in windows gets whole ones, so that no other request changes where they end. Where not one
//   fits, the first prompt of the step gets one all the same, and the others wait.
// * A request of a group whose limit is reached waits, and those behind it go on as if it were not there.
// * A waiting request is admitted only when the blocks it may need to its end fit beside what the running ones may
//   still take, so a step never fails for want of memory. No request of the same or a lower priority overtakes a
//   waiting one that does not fit yet.
//
// Requires  tokens_left >= 1; limits of at least 1.
std::vector<ScheduledTokens> schedule(const SchedulerSnapshot& snapshot, const SchedulerLimits& limits);

}  // namespace mneme
