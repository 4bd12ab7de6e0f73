// Sequences that the pool loses come back from host memory, and preempted answers go on from it: they answer as if all
// had been computed, and little is computed twice.
#include "src/engine/loop/host_tier.h"

#include <gtest/gtest.h>

#include <deque>

#include "src/engine/kv_method.h"
#include "src/engine/schedule/answer_forecast.h"
#include "tests/engine/loop/sharing.h"
#include "tests/error_message.h"
#include "tests/temp_folder.h"

namespace mneme {
namespace {

constexpr std::int64_t kPage = 4096;

KeeperOptions with_host(std::int64_t pages) {
  return {.prefix_cache = true, .n_slots = 0, .host_bytes = pages * kPage};
}

// Questions about `n` documents of 320 tokens each, one after the other, `rounds` times.
void ask_in_turn(Sharing& s, int n, int rounds) {
  std::deque<GenerationInput> inputs;
  std::vector<RequestId> ids;
  for (int round = 0; round < rounds; ++round)
    for (int d = 0; d < n; ++d) {
      inputs.push_back(input_of(question(random_prompt(320, 100 + d), 200 + 10 * round + d)));
      ids.push_back(s.submit(inputs.back()));
      s.finish();
      s.keeper().host()->store().check_invariants();
    }
  s.expect_own_answers(ids, {inputs.begin(), inputs.end()});
}

// Nine documents of ten pages in a pool for three of them.
TEST(HostTier, WhatThePoolLosesHostMemoryHas) {
  Sharing s(with_host(200), 32, 64);
  ask_in_turn(s, 9, 2);
  EXPECT_EQ(s.prefilled(), 9 * 320 + 18 * kOwnRows) << "each document is computed once";
  const HostStore::Stats stats = s.keeper().host()->store().stats();
  EXPECT_EQ(stats.loaded, 90);
  EXPECT_EQ(stats.evicted, 0);
}

// Room for half of the documents: those that were used last are there, and of the oldest the beginning.
TEST(HostTier, TheColdestPagesGoFirst) {
  Sharing s(with_host(25), 11, 64);
  ask_in_turn(s, 4, 1);
  EXPECT_GT(s.keeper().host()->store().stats().evicted, 0);
  // Tokens that come back.
  const auto back = [&](int d) {
    const auto prompt = question(random_prompt(320, 100 + d), 1);
    s.keeper().bring_back(prompt, "", {}, 320);
    const auto source = s.keeper().source_for(prompt, "", std::nullopt);
    return source ? source->n_tokens : 0;
  };
  EXPECT_EQ(back(0), 160) << "25 pages less the 20 of documents 1 and 2";
  EXPECT_EQ(back(2), 320);
}

// Evicted from the pool once more, a document is used with that, though its pages are here already.
TEST(HostTier, WhatThePoolLosesAgainOutlivesWhatItLostMeanwhile) {
  Sharing s({.prefix_cache = true, .n_slots = 0}, 100, 64);
  HostTier tier(s.model(), 20 * kPage);
  std::vector<std::vector<TokenId>> documents;
  std::vector<RequestId> ids;
  for (std::uint64_t d = 0; d < 3; ++d) {
    documents.push_back(random_prompt(320, 100 + d));
    ids.push_back(s.run(input_of(documents.back()), 1));
  }
  for (const int d : {0, 1, 0, 2}) {
    tier.keep(ids[d], documents[d], "");
    tier.write_now(ids[d]);
  }
  EXPECT_EQ(tier.find(documents[1], ""), 0);
  EXPECT_EQ(tier.find(documents[0], ""), 320);
  EXPECT_EQ(tier.find(documents[2], ""), 320);
}

TEST(HostTier, AnotherSaltsPagesAreNotFound) {
  Sharing s(with_host(100), 32, 64);
  const auto document = random_prompt(320, 1);
  const GenerationInput mine = input_of(question(document, 1), 0, "mine");
  s.submit(mine);
  s.finish();
  const GenerationInput large = input_of(random_prompt(900, 9));
  s.submit(large);
  s.finish();
  EXPECT_FALSE(s.keeper().bring_back(document, "yours", {}, 320));
  EXPECT_FALSE(s.keeper().bring_back(document, "", {}, 320));
  EXPECT_TRUE(s.keeper().bring_back(document, "mine", {}, 320));
}

// Host memory has room for two documents, the disk for all.
TEST(HostTier, TheDiskHasWhatHostMemoryLoses) {
  TempFolder folder;
  KeeperOptions options = with_host(22);
  options.disk = DiskOptions{.folder = folder.path() / "kv", .bytes = 64 << 20};
  Sharing s(options, 32, 64);
  ask_in_turn(s, 9, 2);
  EXPECT_EQ(s.prefilled(), 9 * 320 + 18 * kOwnRows) << "each document is computed once";
  EXPECT_GT(s.keeper().disk()->stats().loaded, 0);
  EXPECT_GT(s.keeper().host()->store().stats().evicted, 0);
}

TEST(HostTier, OneThatHasNoRoomForAPageIsRefused) {
  EXPECT_EQ(error_message(ErrorKind::kOption, [] { Sharing s({.prefix_cache = true, .host_bytes = kPage - 1}); }),
            "4095 bytes of host memory have no room for a page, which takes 4096");
}

// Answers of 8 tokens, so that the next ones are forecast to be as short.
void teach_short_answers(Sharing& s) {
  std::deque<GenerationInput> inputs;
  for (std::int64_t i = 0; i < AnswerForecast::kEnough; ++i) {
    inputs.push_back(input_of(random_prompt(10, 1000 + i)));
    s.submit(inputs.back(), 8);
  }
  s.finish();
}

// Four answers of 200 tokens, 8 pages each, in 12 pages.
Engine::Counts answer_four(const KeeperOptions& options, std::shared_ptr<const Plan> plan, bool deterministic) {
  EngineOptions engine = Sharing::options(12, 64, 8, KvAdmission::kForecast);
  engine.deterministic = deterministic;
  Sharing s(options, engine);
  teach_short_answers(s);
  std::deque<GenerationInput> inputs;
  std::vector<RequestId> ids;
  for (std::uint64_t i = 0; i < 4; ++i) {
    inputs.push_back(input_of(random_prompt(40, i)));
    inputs.back().method = plan;
    ids.push_back(s.submit(inputs.back(), 200));
  }
  s.finish();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    RequestInput alone = request(inputs[i].prompt, 200);
    alone.end_tokens = {};
    EXPECT_EQ(s.answers[ids[i]], answer_alone(inputs[i].prompt, alone).tokens) << i;
  }
  const Engine::Counts counts = s.engine().counts();
  if (s.keeper().host() != nullptr) s.keeper().host()->store().check_invariants();
  s.give_all_up();
  EXPECT_EQ(s.engine().pool().n_free(), s.engine().pool().n_blocks());
  return counts;
}

std::shared_ptr<const Plan> plan_of(const char* method) {
  const MethodShape shape{.n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .head_dim = 8};
  return compile(recipe_of({.method = method, .budget = 128, .sink = 32, .recent = 32}), shape);
}

TEST(HostTier, PreemptedAnswersGoOnWithoutComputing) {
  for (const bool deterministic : {false, true})
    for (const char* method : {"", "quest", "freekv", "mneme"}) {
      const auto plan = *method == 0 ? nullptr : plan_of(method);
      const Engine::Counts without = answer_four({.prefix_cache = true}, plan, deterministic);
      const Engine::Counts with = answer_four(with_host(100), plan, deterministic);
      EXPECT_GT(without.preempted_tokens, 0) << method;
      EXPECT_EQ(without.returned_tokens, 0) << method;
      EXPECT_GT(with.preempted_tokens, 0) << method;
      EXPECT_EQ(with.returned_tokens, with.preempted_tokens) << method;
    }
}

// Answers that wait for room, with pages in the host tier, are cancelled: nothing of them stays there.
TEST(HostTier, ACancelledAnswerLeavesNothing) {
  Sharing s(with_host(100), Sharing::options(12, 64, 8, KvAdmission::kForecast));
  teach_short_answers(s);
  std::deque<GenerationInput> inputs;
  std::vector<RequestId> ids;
  for (std::uint64_t i = 0; i < 4; ++i) {
    inputs.push_back(input_of(random_prompt(40, i)));
    inputs.back().method = plan_of("streaming_llm");  // binds its sequence, which nobody keeps
    ids.push_back(s.submit(inputs.back(), 200));
  }
  for (int i = 0; i < 1000 && s.engine().counts().preempted_tokens == 0; ++i) s.step();
  const std::int64_t pages = s.keeper().host()->store().stats().pages;
  EXPECT_GT(s.engine().counts().preempted_tokens, 0);
  for (const RequestId id : ids) {
    s.cancel(id);
    s.engine().check_invariants();
    s.keeper().host()->store().check_invariants();
  }
  s.finish();
  EXPECT_LT(s.keeper().host()->store().stats().pages, pages);
  EXPECT_EQ(s.keeper().host()->store().stats().evicted, 0);
  s.give_all_up();
  EXPECT_EQ(s.engine().pool().n_free(), s.engine().pool().n_blocks());
}

// Room for a page or two: what it does not take is computed again.
TEST(HostTier, WhatHasNoRoomIsComputedAgain) {
  const Engine::Counts counts = answer_four(with_host(2), nullptr, false);
  EXPECT_GT(counts.preempted_tokens, counts.returned_tokens);
}

}  // namespace
}  // namespace mneme
