#include "src/engine/scheduler.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {

std::vector<ScheduledRows> schedule(const SchedulerSnapshot& snapshot, const SchedulerLimits& limits) {
  std::vector<ScheduledRows> rows;
  std::vector<const RequestView*> prompts;  // that could go on or begin
  std::int64_t unreserved = snapshot.free_blocks;
  std::int32_t n_running = 0;
  for (const RequestView& r : snapshot.requests) {
    MNEME_CHECK(r.tokens_left > 0 && r.blocks_to_end >= 0, "request {}: {} tokens left, {} blocks", r.id.value,
                r.tokens_left, r.blocks_to_end);
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
  bool admits = true;
  for (const RequestView* r : prompts) {
    if (budget == 0) break;
    if (r->phase == RequestPhase::kWaiting) {
      admits = admits && n_running < limits.max_sequences && r->blocks_to_end <= unreserved;
      if (!admits) continue;  // nor does anybody behind it begin; prompts that have begun go on
      ++n_running;
      unreserved -= r->blocks_to_end;
    }
    const std::int32_t n = std::min(r->tokens_left, budget);
    rows.push_back({r->id, n});
    budget -= n;
  }
  return rows;
}

}  // namespace mneme
