#include "src/engine/schedule/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/base/rng.h"

namespace mneme {
namespace {

using Phase = RequestPhase;
using Rows = std::vector<std::pair<std::int64_t, std::int32_t>>;

RequestView view(std::int64_t id, Phase phase, std::int32_t tokens, std::int64_t blocks = 1,
                 std::int32_t priority = 0) {
  return {.id = RequestId(id), .phase = phase, .tokens_left = tokens, .blocks_to_end = blocks, .priority = priority};
}

Rows rows(const std::vector<RequestView>& requests, std::int64_t free_blocks, SchedulerLimits limits) {
  Rows out;
  for (const ScheduledTokens& r : schedule({.requests = requests, .free_blocks = free_blocks}, limits))
    out.push_back({r.id.value, r.n_tokens});
  return out;
}

TEST(Scheduler, NothingToDoIsNothing) {
  EXPECT_EQ(rows({}, 100, {}), Rows{});
}

TEST(Scheduler, DecodeComesFirstThenPromptsInOrder) {
  EXPECT_EQ(rows({view(1, Phase::kPrefill, 50), view(2, Phase::kDecode, 1), view(3, Phase::kWaiting, 50),
                  view(4, Phase::kDecode, 1), view(5, Phase::kWaiting, 50)},
                 100, {.max_sequences = 16, .max_batched_tokens = 102}),
            (Rows{{2, 1}, {4, 1}, {1, 50}, {3, 50}}));
}

TEST(Scheduler, PromptsAreCutToTheBudget) {
  EXPECT_EQ(rows({view(1, Phase::kWaiting, 1000)}, 9, {.max_batched_tokens = 256}), (Rows{{1, 256}}));
  EXPECT_EQ(rows({view(1, Phase::kPrefill, 200), view(2, Phase::kWaiting, 1000)}, 9, {.max_batched_tokens = 256}),
            (Rows{{1, 200}, {2, 56}}));
}

TEST(Scheduler, APromptGetsATokenEvenIfDecodeFillsTheBudget) {
  EXPECT_EQ(rows({view(1, Phase::kDecode, 1), view(2, Phase::kDecode, 1), view(3, Phase::kPrefill, 9)}, 9,
                 {.max_batched_tokens = 2}),
            (Rows{{1, 1}, {2, 1}, {3, 1}}));
}

TEST(Scheduler, BesideAnswersPromptsGetAChunk) {
  const SchedulerLimits limits{.max_batched_tokens = 256, .max_prompt_tokens = 40};
  EXPECT_EQ(rows({view(1, Phase::kDecode, 1), view(2, Phase::kPrefill, 30), view(3, Phase::kWaiting, 90)}, 9, limits),
            (Rows{{1, 1}, {2, 30}, {3, 10}}));
  EXPECT_EQ(rows({view(2, Phase::kPrefill, 300)}, 9, limits), (Rows{{2, 256}})) << "nobody answers";
}

TEST(Scheduler, ApartAStepHasAnswersOrOnePrompt) {
  const std::vector<RequestView> all{view(1, Phase::kDecode, 1), view(2, Phase::kPrefill, 300),
                                     view(3, Phase::kWaiting, 20), view(4, Phase::kDecode, 1)};
  SchedulerLimits limits{.max_batched_tokens = 256, .max_prompt_tokens = 40, .apart = true};
  EXPECT_EQ(rows(all, 9, limits), (Rows{{1, 1}, {4, 1}}));
  limits.prompt_next = true;
  EXPECT_EQ(rows(all, 9, limits), (Rows{{2, 256}})) << "a whole step: it has no rows of answers";
  EXPECT_EQ(rows({view(3, Phase::kWaiting, 20, 5), view(4, Phase::kDecode, 1)}, 4, limits), (Rows{{4, 1}}))
      << "the prompt does not fit yet";
  EXPECT_EQ(rows({view(2, Phase::kPrefill, 30), view(3, Phase::kWaiting, 20)}, 9, limits), (Rows{{2, 30}}));
}

RequestView grouped(RequestView v, std::int32_t group, std::int32_t limit) {
  v.group = group;
  v.group_limit = limit;
  return v;
}

// The second and third wait for the first, of their group; the fourth does not wait for them.
TEST(Scheduler, AGroupsLimitHoldsItsOwnRequestsAlone) {
  const std::vector<RequestView> requests = {
      grouped(view(1, Phase::kDecode, 1), 7, 1),   grouped(view(2, Phase::kWaiting, 10, 1, 5), 7, 1),
      grouped(view(3, Phase::kWaiting, 10), 7, 1), grouped(view(4, Phase::kWaiting, 10), 8, 1),
      grouped(view(5, Phase::kWaiting, 10), 8, 1), view(6, Phase::kWaiting, 10)};
  EXPECT_EQ(rows(requests, 100, {}), (Rows{{1, 1}, {4, 10}, {6, 10}}));
  // Nor does it take anybody's place.
  EXPECT_EQ(rows({requests[0], requests[1]}, 100, {.max_sequences = 1}), (Rows{{1, 1}}));
}

TEST(Scheduler, WhoIsHeldGetsNoRowsAndKeepsItsReservation) {
  RequestView held = view(1, Phase::kPrefill, 50, 6);
  held.held = true;
  EXPECT_EQ(rows({held, view(2, Phase::kWaiting, 10, 5)}, 10, {}), Rows{});
  EXPECT_EQ(rows({held, view(2, Phase::kWaiting, 10, 4)}, 10, {.max_sequences = 1}), (Rows{{2, 10}}));
}

RequestView windowed(std::int64_t id, std::int32_t tokens, std::int32_t first, std::int32_t window) {
  RequestView v = view(id, Phase::kPrefill, tokens);
  v.first_window = first;
  v.window = window;
  return v;
}

TEST(Scheduler, PromptsInWindowsGetWholeOnes) {
  EXPECT_EQ(rows({windowed(1, 1000, 32, 32)}, 9, {.max_batched_tokens = 100}), (Rows{{1, 96}}));
  EXPECT_EQ(rows({windowed(1, 1000, 5, 32)}, 9, {.max_batched_tokens = 100}), (Rows{{1, 69}}));
  EXPECT_EQ(rows({windowed(1, 99, 5, 32)}, 9, {.max_batched_tokens = 100}), (Rows{{1, 99}}));
  // Not one fits: the first prompt gets one all the same, the second one waits, and a third that fits goes ahead.
  EXPECT_EQ(rows({windowed(1, 1000, 32, 32)}, 9, {.max_batched_tokens = 7}), (Rows{{1, 32}}));
  EXPECT_EQ(rows({windowed(1, 1000, 256, 256), windowed(2, 1000, 256, 256), windowed(3, 40, 256, 256)}, 9,
                 {.max_batched_tokens = 300}),
            (Rows{{1, 256}, {3, 40}}));
  EXPECT_EQ(rows({view(1, Phase::kDecode, 1), windowed(2, 20, 32, 32)}, 9, {.max_batched_tokens = 8}),
            (Rows{{1, 1}, {2, 20}}));
}

TEST(Scheduler, PriorityThenArrival) {
  EXPECT_EQ(rows({view(1, Phase::kWaiting, 8), view(2, Phase::kWaiting, 8, 1, 5), view(3, Phase::kPrefill, 8, 1, 1),
                  view(4, Phase::kWaiting, 8, 1, 5)},
                 99, {.max_batched_tokens = 28}),
            (Rows{{2, 8}, {4, 8}, {3, 8}, {1, 4}}));
}

TEST(Scheduler, AdmissionLeavesWhatTheRunningOnesMayTake) {
  const auto at = [](std::int64_t free) {
    return rows({view(1, Phase::kDecode, 1, 10), view(2, Phase::kPrefill, 4, 20), view(3, Phase::kWaiting, 4, 5)}, free,
                {});
  };
  EXPECT_EQ(at(34), (Rows{{1, 1}, {2, 4}}));
  EXPECT_EQ(at(35), (Rows{{1, 1}, {2, 4}, {3, 4}}));
}

TEST(Scheduler, NobodyOvertakesWhoDoesNotFit) {
  EXPECT_EQ(rows({view(1, Phase::kWaiting, 4, 50), view(2, Phase::kWaiting, 4, 1)}, 10, {}), Rows{});
  // Not from below either; from above, yes, and prompts that have started go on.
  EXPECT_EQ(rows({view(1, Phase::kWaiting, 4, 50, 1), view(2, Phase::kWaiting, 4, 1, 0)}, 10, {}), Rows{});
  EXPECT_EQ(
      rows({view(1, Phase::kWaiting, 4, 50), view(2, Phase::kWaiting, 4, 1, 1), view(3, Phase::kPrefill, 4, 1, -1)}, 10,
           {}),
      (Rows{{2, 4}, {3, 4}}));
}

TEST(Scheduler, AtMostMaxSequencesRun) {
  EXPECT_EQ(rows({view(1, Phase::kDecode, 1), view(2, Phase::kWaiting, 4), view(3, Phase::kWaiting, 4)}, 99,
                 {.max_sequences = 2}),
            (Rows{{1, 1}, {2, 4}}));
  EXPECT_EQ(rows({view(1, Phase::kDecode, 1), view(2, Phase::kWaiting, 4)}, 99, {.max_sequences = 1}), (Rows{{1, 1}}));
}

TEST(Scheduler, HighPriorityPreemptsTheLowest) {
  const RequestView urgent = view(4, Phase::kWaiting, 4, 1, 9);
  EXPECT_EQ(rows({view(1, Phase::kDecode, 1, 1, 1), view(2, Phase::kDecode, 1), view(3, Phase::kDecode, 1), urgent}, 99,
                 {.max_sequences = 3}),
            (Rows{{1, 1}, {2, 1}, {4, 4}}));
  // As long as it runs, the other waits; then that goes on, ahead of equals that have not begun.
  EXPECT_EQ(rows({view(1, Phase::kDecode, 1), view(2, Phase::kDecode, 1), view(3, Phase::kDecode, 1, 1, 9)}, 99,
                 {.max_sequences = 2}),
            (Rows{{1, 1}, {3, 1}}));
  EXPECT_EQ(rows({view(1, Phase::kDecode, 1), view(2, Phase::kDecode, 1), view(5, Phase::kWaiting, 4)}, 99,
                 {.max_sequences = 2}),
            (Rows{{1, 1}, {2, 1}}));
  // Not where it does not fit, nor where its prompt would get no rows yet.
  EXPECT_EQ(rows({view(1, Phase::kDecode, 1, 5), view(2, Phase::kWaiting, 4, 5, 9)}, 9, {.max_sequences = 1}),
            (Rows{{1, 1}}));
  EXPECT_EQ(rows({view(1, Phase::kDecode, 1), view(2, Phase::kPrefill, 500, 1, 9), view(3, Phase::kWaiting, 4, 1, 9)},
                 99, {.max_sequences = 2, .max_batched_tokens = 100}),
            (Rows{{1, 1}, {2, 99}}));
}

// ---- rules over random snapshots

struct Case {
  std::vector<RequestView> requests;
  std::int64_t free_blocks = 0;
  SchedulerLimits limits;
};

Case random_case(Rng& rng) {
  Case c;
  c.limits = {.max_sequences = 1 + static_cast<std::int32_t>(rng.below(8)),
              .max_batched_tokens = 1 + static_cast<std::int32_t>(rng.below(rng.below(2) == 0 ? 6 : 200))};
  const std::int64_t n = rng.below(14);
  std::int64_t reserved = 0;
  std::int32_t running = 0;
  for (std::int64_t id = 0; id < n; ++id) {
    RequestView r = view(id, Phase::kWaiting, 1 + static_cast<std::int32_t>(rng.below(90)),
                         static_cast<std::int64_t>(rng.below(30)), static_cast<std::int32_t>(rng.below(3)) - 1);
    // More than there are sequence slots: somebody was displaced.
    if (running < c.limits.max_sequences + 2 && rng.below(2) == 0) {
      r.phase = rng.below(2) == 0 ? Phase::kDecode : Phase::kPrefill;
      if (r.phase == Phase::kDecode) r.tokens_left = 1;
      reserved += r.blocks_to_end;
      ++running;
    }
    c.requests.push_back(r);
  }
  c.free_blocks = reserved + static_cast<std::int64_t>(rng.below(60));
  return c;
}

bool before(const RequestView& a, const RequestView& b) {
  return a.priority > b.priority || (a.priority == b.priority && a.id < b.id);
}

void expect_rules(const Case& c) {
  const auto result = schedule({.requests = c.requests, .free_blocks = c.free_blocks}, c.limits);
  std::map<RequestId, std::int32_t> given;
  std::int32_t total = 0, n_decode = 0, n_running = 0;
  std::int64_t promised = 0;
  const auto got = [&](const RequestView& r) { return given.contains(r.id); };
  // All sequence slots are others', none of them less urgent.
  const auto displaced = [&](const RequestView& r) {
    const auto holds = [&](const RequestView& other) {
      return other.id != r.id && other.priority >= r.priority && (other.phase != Phase::kWaiting || got(other));
    };
    return std::count_if(c.requests.begin(), c.requests.end(), holds) >= c.limits.max_sequences;
  };
  for (const ScheduledTokens& r : result) {
    ASSERT_GE(r.n_tokens, 1);
    ASSERT_TRUE(given.emplace(r.id, r.n_tokens).second) << "twice";
    total += r.n_tokens;
  }
  for (const RequestView& r : c.requests) {
    const std::int32_t n = given.contains(r.id) ? given[r.id] : 0;
    ASSERT_LE(n, r.tokens_left);
    n_decode += r.phase == Phase::kDecode ? n : 0;
    if (r.phase != Phase::kWaiting || n > 0) promised += r.blocks_to_end;
    n_running += n > 0 ? 1 : 0;
  }
  for (const RequestView& r : c.requests) {
    if (r.phase != Phase::kDecode || got(r)) continue;
    ASSERT_TRUE(displaced(r)) << r.id.value << " starves";
  }
  ASSERT_LE(total, std::max(c.limits.max_batched_tokens, n_decode + 1));
  ASSERT_LE(promised, c.free_blocks) << "overcommitted";
  ASSERT_LE(n_running, c.limits.max_sequences);
  for (std::int32_t i = 0; i < n_decode; ++i) ASSERT_EQ(result[i].n_tokens, 1);

  const std::int32_t budget = std::max(c.limits.max_batched_tokens - n_decode, 1);
  const bool budget_left = total - n_decode < budget;
  bool any_running = false;
  const RequestView* first = nullptr;
  for (const RequestView& r : c.requests) {
    any_running = any_running || r.phase != Phase::kWaiting;
    if (r.phase == Phase::kWaiting && (first == nullptr || before(r, *first))) first = &r;
    if (r.phase == Phase::kDecode) continue;
    const std::int32_t n = given.contains(r.id) ? given[r.id] : 0;
    ASSERT_TRUE(!budget_left || r.phase == Phase::kWaiting || n == r.tokens_left || (n == 0 && displaced(r)))
        << "budget is left over";
    for (const RequestView& other : c.requests) {
      if (other.phase == Phase::kDecode || !given.contains(other.id) || !before(r, other)) continue;
      // `other` got something although `r` is ahead of it: then r has all it wants, or waits behind a closed door while
      // other runs.
      ASSERT_TRUE(n == r.tokens_left || (n == 0 && r.phase == Phase::kWaiting && other.phase == Phase::kPrefill))
          << other.id.value << " overtakes " << r.id.value;
    }
  }
  if (any_running || (first != nullptr && first->blocks_to_end <= c.free_blocks)) {
    ASSERT_FALSE(result.empty()) << "no progress";
  }
  if (!any_running && first != nullptr && first->blocks_to_end <= c.free_blocks) {
    ASSERT_EQ(result.front().id, first->id);
  }
  const auto again = schedule({.requests = c.requests, .free_blocks = c.free_blocks}, c.limits);
  ASSERT_TRUE(std::equal(result.begin(), result.end(), again.begin(), again.end(),
                         [](const auto& a, const auto& b) { return a.id == b.id && a.n_tokens == b.n_tokens; }));
}

TEST(Scheduler, RulesHoldForRandomSnapshots) {
  Rng rng(5);
  for (int i = 0; i < 20000; ++i) {
    const Case c = random_case(rng);
    expect_rules(c);
    if (testing::Test::HasFatalFailure()) FAIL() << "case " << i;
  }
}

// A closed system driven by the scheduler alone: everybody ends, whatever the mixture.
TEST(Scheduler, EverybodyEndsInASimulatedQueue) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    constexpr std::int64_t kPool = 40;
    const SchedulerLimits limits{.max_sequences = 1 + static_cast<std::int32_t>(rng.below(5)),
                                 .max_batched_tokens = 1 + static_cast<std::int32_t>(rng.below(50))};
    struct Job {
      RequestView view;
      std::int32_t answer = 0;
    };
    std::vector<Job> jobs;
    for (std::int64_t id = 0; id < 25; ++id) {
      jobs.push_back({view(id, Phase::kWaiting, 1 + static_cast<std::int32_t>(rng.below(100)), rng.below(kPool + 1),
                           static_cast<std::int32_t>(rng.below(2))),
                      1 + static_cast<std::int32_t>(rng.below(20))});
    }
    int steps = 0;
    while (!jobs.empty()) {
      ASSERT_LT(++steps, 5000);
      std::vector<RequestView> views;
      for (const Job& j : jobs) views.push_back(j.view);
      const auto plan = schedule({.requests = views, .free_blocks = kPool}, limits);
      ASSERT_FALSE(plan.empty());
      for (const ScheduledTokens& r : plan) {
        const auto job = std::find_if(jobs.begin(), jobs.end(), [&](const Job& j) { return j.view.id == r.id; });
        if (job->view.phase == Phase::kDecode) {
          if (--job->answer == 0) jobs.erase(job);
          continue;
        }
        job->view.phase = Phase::kPrefill;
        job->view.tokens_left -= r.n_tokens;
        if (job->view.tokens_left == 0)
          job->view = view(r.id.value, Phase::kDecode, 1, job->view.blocks_to_end, job->view.priority);
      }
    }
  }
}

}  // namespace
}  // namespace mneme
