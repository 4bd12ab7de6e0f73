#include "src/engine/schedule/scheduler.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

// Rows of the prompt in this step, at most `room` but for a first window that must be: 0, it waits.
std::int32_t prompt_rows(const RequestView& r, std::int32_t room, bool must) {
  if (r.tokens_left <= room) return r.tokens_left;
  if (room < r.first_window) return must ? std::min(r.first_window, r.tokens_left) : 0;
  return r.first_window + (room - r.first_window) / r.window * r.window;
}

std::int32_t prompt_budget(const SchedulerLimits& limits, std::int64_t n_decode) {
  const std::int64_t room = limits.max_batched_tokens - n_decode;
  return count32(
      std::max<std::int64_t>(n_decode > 0 ? std::min<std::int64_t>(room, limits.max_prompt_tokens) : room, 1));
}

// How many running requests leave their sequence slots to others this step, of those listed from the lowest priority on.
std::size_t n_displaced(const SchedulerSnapshot& snapshot, const SchedulerLimits& limits,
                        std::span<const RequestView* const> running) {
  std::vector<const RequestView*> waiting;
  std::int64_t unreserved = snapshot.free_blocks, prompt_tokens = 0, n_decode = 0;
  for (const RequestView& r : snapshot.requests) {
    if (r.phase == RequestPhase::kWaiting) {
      waiting.push_back(&r);
      continue;
    }
    unreserved -= r.blocks_to_end;
    if (r.held) continue;
    ++(r.phase == RequestPhase::kDecode ? n_decode : prompt_tokens);
    if (r.phase == RequestPhase::kPrefill) prompt_tokens += r.tokens_left - 1;
  }
  std::stable_sort(waiting.begin(), waiting.end(),
                   [](const auto* a, const auto* b) { return a->priority > b->priority; });
  const std::size_t seq_slots = limits.max_sequences;
  std::size_t free_seq_slots = seq_slots - std::min(seq_slots, running.size());
  std::size_t n = running.size() - std::min(seq_slots, running.size());  // left theirs before, and wait for one
  GroupCounts groups(snapshot.requests);
  for (const RequestView* w : waiting) {
    if (groups.full(*w)) continue;
    if (w->blocks_to_end > unreserved) break;
    groups.add(*w);
    unreserved -= w->blocks_to_end;
    prompt_tokens += w->tokens_left;
    if (free_seq_slots > 0) {
      --free_seq_slots;
      continue;
    }
    // Nobody waits for a prompt that would get no rows: others are read first.
    const bool read_now = prompt_tokens - w->tokens_left < prompt_budget(limits, n_decode);
    if (!read_now || n == running.size() || running[n]->priority >= w->priority) break;
    ++n;
  }
  return n;
}

// Running requests that get no rows, although there are some: others of higher priority have the sequence slots.
std::vector<const RequestView*> displaced(const SchedulerSnapshot& snapshot, const SchedulerLimits& limits) {
  std::vector<const RequestView*> running;
  for (const RequestView& r : snapshot.requests)
    if (r.phase != RequestPhase::kWaiting && !r.held) running.push_back(&r);
  std::reverse(running.begin(), running.end());
  std::stable_sort(running.begin(), running.end(),
                   [](const auto* a, const auto* b) { return a->priority < b->priority; });
  running.resize(n_displaced(snapshot, limits, running));
  return running;
}

}  // namespace

GroupCounts::GroupCounts(std::span<const RequestView> requests) {
  for (const RequestView& r : requests)
    if (r.phase != RequestPhase::kWaiting) add(r);
}

bool GroupCounts::full(const RequestView& r) const {
  const auto it = n_.find(r.group);
  return r.group_limit > 0 && it != n_.end() && it->second >= r.group_limit;
}

std::vector<ScheduledTokens> schedule(const SchedulerSnapshot& snapshot, const SchedulerLimits& limits) {
  const std::vector<const RequestView*> paused = displaced(snapshot, limits);
  std::vector<ScheduledTokens> rows;
  std::vector<const RequestView*> prompts;  // that could go on or begin
  std::int64_t unreserved = snapshot.free_blocks;
  std::int32_t n_running = 0;
  for (const RequestView& r : snapshot.requests) {
    MNEME_CHECK(r.tokens_left > 0 && r.blocks_to_end >= 0 && r.first_window > 0 && r.window > 0,
                "request {}: {} tokens left in windows of {}, {} blocks", r.id.value, r.tokens_left, r.window,
                r.blocks_to_end);
    if (r.phase != RequestPhase::kWaiting) unreserved -= r.blocks_to_end;
    if (r.held || std::find(paused.begin(), paused.end(), &r) != paused.end()) continue;
    if (r.phase != RequestPhase::kWaiting) ++n_running;
    if (r.phase == RequestPhase::kDecode) {
      rows.push_back({r.id, 1});
    } else {
      prompts.push_back(&r);
    }
  }

  const auto n_decode = size32(rows);
  std::int32_t budget = prompt_budget(limits, n_decode);
  GroupCounts groups(snapshot.requests);
  std::stable_sort(prompts.begin(), prompts.end(),
                   [](const auto* a, const auto* b) { return a->priority > b->priority; });
  bool admits = true, any_prompt = false;
  for (const RequestView* r : prompts) {
    if (budget == 0) break;
    if (r->phase == RequestPhase::kWaiting) {
      if (groups.full(*r)) continue;
      admits = admits && n_running < limits.max_sequences && r->blocks_to_end <= unreserved;
      if (!admits) continue;  // nor does anybody behind it begin; prompts that have started go on
      ++n_running;
      groups.add(*r);
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
