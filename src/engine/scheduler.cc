#include "src/engine/scheduler.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {
namespace {

// Rows of the prompt in this step, at most `room` but for a first window that must be: 0, it waits.
std::int32_t prompt_rows(const RequestView& r, std::int32_t room, bool must) {
  if (r.tokens_left <= room) return r.tokens_left;
  if (room < r.first_window) return must ? std::min(r.first_window, r.tokens_left) : 0;
  return r.first_window + (room - r.first_window) / r.window * r.window;
}

}  // namespace

std::vector<ScheduledRows> schedule(const SchedulerSnapshot& snapshot, const SchedulerLimits& limits) {
  std::vector<ScheduledRows> rows;
  std::vector<const RequestView*> prompts;  // that could go on or begin
  std::int64_t unreserved = snapshot.free_blocks;
  std::int32_t n_running = 0;
  for (const RequestView& r : snapshot.requests) {
    MNEME_CHECK(r.tokens_left > 0 && r.blocks_to_end >= 0 && r.first_window > 0 && r.window > 0,
                "request {}: {} tokens left in windows of {}, {} blocks", r.id.value, r.tokens_left, r.window,
                r.blocks_to_end);
    if (r.phase != RequestPhase::kWaiting) {
      ++n_running;
      unreserved -= r.blocks_to_end;
    }
    if (r.phase == RequestPhase::kDecode) {
      rows.push_back({r.id, 1});
    } else {
      prompts.push_back(&r);
    }
  }

  const auto n_decode = static_cast<std::int32_t>(rows.size());
  std::int32_t budget = std::max(limits.max_batched_tokens - n_decode, 1);
  std::stable_sort(prompts.begin(), prompts.end(),
                   [](const auto* a, const auto* b) { return a->priority > b->priority; });
  bool admits = true, any_prompt = false;
  for (const RequestView* r : prompts) {
    if (budget == 0) break;
    if (r->phase == RequestPhase::kWaiting) {
      admits = admits && n_running < limits.max_sequences && r->blocks_to_end <= unreserved;
      if (!admits) continue;  // nor does anybody behind it begin; prompts that have begun go on
      ++n_running;
      unreserved -= r->blocks_to_end;
    }
    const std::int32_t n = prompt_rows(*r, r->most_rows > 0 ? std::min(budget, r->most_rows) : budget, !any_prompt);
    if (n == 0) continue;
    any_prompt = true;
    rows.push_back({r->id, n});
    budget -= std::min(n, budget);
  }
  return rows;
}

}  // namespace mneme
