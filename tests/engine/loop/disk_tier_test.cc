// Sequences that memory or the process lost come back from the disk, and answer as if they had been computed.
#include "src/engine/loop/disk_tier.h"

#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/engine/loop/sharing.h"
#include "tests/temp_folder.h"

namespace mneme {
namespace {

KeeperOptions on(const TempFolder& folder, std::int64_t bytes = 64 << 20, DiskIo io = DiskIo::kAuto) {
  return {.prefix_cache = true,
          .n_slots = 0,
          .disk = DiskOptions{.folder = folder.path() / "kv", .bytes = bytes, .io = io}};
}

void write_all(Sharing& s) {
  s.work_to_the_end();
  s.keeper().disk()->check_invariants();
}

// What a process before this one left: it read the document, and wrote its pages.
void read_in_a_first_process(const TempFolder& folder, std::span<const TokenId> document, DiskIo io = DiskIo::kAuto) {
  Sharing s(on(folder, 64 << 20, io), 1000, 1024);
  const GenerationInput input = input_of(question(document, 1));
  s.submit(input);
  s.finish();
}

TEST(DiskTier, APromptComesBackAfterARestart) {
  for (const DiskIo io : {DiskIo::kPlain, DiskIo::kAuto}) {
    TempFolder folder;
    const auto document = random_prompt(320, 1);
    const auto inputs = questions(document, 4);
    read_in_a_first_process(folder, document, io);
    Sharing s(on(folder, 64 << 20, io));
    const std::vector<GenerationInput> rest(inputs.begin() + 1, inputs.end());
    const auto ids = submit_all(s, rest);
    s.finish();
    s.expect_own_answers(ids, rest);
    for (const RequestId id : ids) EXPECT_EQ(s.shared[id], 320);
    EXPECT_EQ(s.prefilled(), 3 * kOwnRows);
    EXPECT_EQ(s.keeper().disk()->stats().loaded, 10) << "once for all three";
  }
}

TEST(DiskTier, AnotherSaltsPagesAreNotFound) {
  TempFolder folder;
  const auto document = random_prompt(320, 1);
  Sharing s(on(folder));
  const GenerationInput mine = input_of(question(document, 1), 0, "mine");
  s.submit(mine);
  s.finish();
  write_all(s);
  EXPECT_EQ(s.keeper().fetch(document, "yours", {}, 320), std::nullopt);
  EXPECT_EQ(s.keeper().fetch(document, "", {}, 320), std::nullopt);
  EXPECT_TRUE(s.keeper().fetch(document, "mine", {}, 320));
  write_all(s);
}

// Nine documents of ten pages in memory for three of them.
TEST(DiskTier, WhatMemoryLosesTheDiskHas) {
  TempFolder folder;
  Sharing s(on(folder), 32, 64);
  std::deque<GenerationInput> inputs;
  std::vector<RequestId> ids;
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t d = 0; d < 9; ++d) {
      inputs.push_back(input_of(question(random_prompt(320, 100 + d), 200 + 10 * round + d)));
      ids.push_back(s.submit(inputs.back()));
      s.finish();
    }
  }
  s.expect_own_answers(ids, {inputs.begin(), inputs.end()});
  EXPECT_EQ(s.prefilled(), 9 * 320 + 18 * kOwnRows) << "each document is computed once";
  EXPECT_GT(s.keeper().disk()->stats().loaded, 0);
  s.keeper().disk()->check_invariants();
}

// The first part is in memory, the rest on the disk.
TEST(DiskTier, FetchesOnlyWhatIsMissing) {
  TempFolder folder;
  const auto document = random_prompt(640, 1);
  read_in_a_first_process(folder, document);
  Sharing s(on(folder));
  const GenerationInput part = input_of(question(std::span(document).first(320), 2));
  const GenerationInput whole = input_of(question(document, 3));
  const RequestId a = s.submit(part);
  s.finish();
  EXPECT_EQ(s.keeper().disk()->stats().loaded, 10);
  const RequestId b = s.submit(whole);
  s.finish();
  EXPECT_EQ(s.keeper().disk()->stats().loaded, 20);
  EXPECT_EQ(s.shared[b], 640);
  s.expect_own_answers({a, b}, {part, whole});
}

// Others are computed while pages are read.
TEST(DiskTier, OthersGoOnWhilePagesCome) {
  TempFolder folder;
  const auto document = random_prompt(3200, 1);
  read_in_a_first_process(folder, document);
  Sharing s(on(folder), 1000, 1024);
  const GenerationInput cold = input_of(question(document, 2)), other = input_of(random_prompt(20, 3));
  const RequestId a = s.submit(cold), b = s.submit(other);
  s.step();
  EXPECT_EQ(s.answers[b].size(), 1u);
  EXPECT_EQ(s.waits().waiting(), 1) << "100 pages do not come between two steps";
  s.finish();
  s.expect_own_answers({a, b}, {cold, other});
  EXPECT_EQ(s.shared[a], 3200);
}

// What is damaged is computed again; who waited for it goes on from what came.
TEST(DiskTier, ADamagedPageIsComputedAgain) {
  TempFolder folder;
  const auto document = random_prompt(320, 1);
  read_in_a_first_process(folder, document);
  {
    std::fstream file(folder.path() / "kv" / "pages.kv", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5 * 4096 + 100);
    file.put('x');
    file.put('y');
  }
  Sharing s(on(folder));
  const auto inputs = questions(document, 3);
  const auto ids = submit_all(s, inputs);
  s.finish();
  s.expect_own_answers(ids, inputs);
  EXPECT_EQ(s.shared[ids[0]], 160);
  EXPECT_EQ(s.keeper().disk()->stats().failed_reads, 1);
  EXPECT_EQ(s.prefilled(), 160 + 3 * kOwnRows);
}

// Pages that came after a damaged one kept their places: after some such loads none was left, and the next one never ended.
TEST(DiskTier, ACutLoadGivesItsPlacesBack) {
  constexpr std::uint64_t kDamaged = 6;
  constexpr std::int32_t kPages = 40;
  TempFolder folder;
  std::vector<std::vector<TokenId>> documents;
  {
    Sharing s(on(folder), 1000, 1024);
    for (std::uint64_t d = 0; d <= kDamaged; ++d) {
      documents.push_back(random_prompt(kPages * kPageTokens, 50 + d));
      const GenerationInput input = input_of(documents.back());
      s.submit(input);
      s.finish();
      write_all(s);
    }
    std::fstream file(folder.path() / "kv" / "pages.kv", std::ios::in | std::ios::out | std::ios::binary);
    for (std::uint64_t d = 0; d < kDamaged; ++d) {  // the second page of each
      file.seekp(static_cast<std::streamoff>((d * kPages + 1) * 4096 + 100));
      file.write("damage", 6);
    }
  }
  Sharing s(on(folder), 1000, 1024);
  std::vector<GenerationInput> inputs;
  for (const auto& document : documents) inputs.push_back(input_of(question(document, 3)));
  std::vector<RequestId> ids;
  for (const GenerationInput& input : inputs) {
    ids.push_back(s.submit(input));
    s.finish();
  }
  EXPECT_EQ(s.keeper().disk()->stats().failed_reads, kDamaged);
  EXPECT_EQ(s.shared[ids.front()], kPageTokens);
  EXPECT_EQ(s.shared[ids.back()], kPages * kPageTokens);
  s.expect_own_answers(ids, inputs);
}

// A request that goes away while its pages come leaves them as a cached sequence.
TEST(DiskTier, ACancelledRequestLeavesWhatComes) {
  TempFolder folder;
  const auto document = random_prompt(320, 1);
  read_in_a_first_process(folder, document);
  Sharing s(on(folder));
  const auto inputs = questions(document, 2);
  const RequestId first = s.submit(inputs[0]);
  s.waits().plan();
  EXPECT_EQ(s.waits().waiting(), 1);
  s.cancel(first);
  write_all(s);
  const RequestId second = s.submit(inputs[1]);
  s.finish();
  EXPECT_EQ(s.shared[second], 320);
  EXPECT_EQ(s.keeper().disk()->stats().loaded, 10);
}

// Pages for which running requests leave no room are not waited for.
TEST(DiskTier, WithoutRoomItIsComputed) {
  TempFolder folder;
  const auto document = random_prompt(320, 1);
  read_in_a_first_process(folder, document);
  Sharing s(on(folder), 14, 64);
  const GenerationInput large = input_of(random_prompt(200, 9)), cold = input_of(question(document, 2));
  const RequestId a = s.submit(large, 80);
  s.step();
  const RequestId b = s.submit(cold);
  s.finish();
  EXPECT_EQ(s.answers[a].size(), 80u);
  s.expect_own_answers({b}, {cold});
}

// A disk for two documents keeps the two that were used last.
TEST(DiskTier, ASmallDiskKeepsWhatWasUsedLast) {
  TempFolder folder;
  {
    Sharing s(on(folder, 22 * 4096));
    std::deque<GenerationInput> inputs;
    for (std::uint64_t d = 0; d < 4; ++d) {
      inputs.push_back(input_of(question(random_prompt(320, 100 + d), d)));
      s.submit(inputs.back());
      s.finish();
      write_all(s);
    }
  }
  Sharing s(on(folder, 22 * 4096));
  EXPECT_TRUE(s.keeper().fetch(random_prompt(320, 103), "", {}, 320));
  EXPECT_FALSE(s.keeper().fetch(random_prompt(320, 100), "", {}, 320));
  write_all(s);
}

// A load in flight is of one salt: a request of another waited for it, and then computed all.
TEST(DiskTier, LoadsInFlightAreNotSharedAmongSalts) {
  TempFolder folder;
  const auto document = random_prompt(320, 1);
  const auto ask_both = [&](Sharing& s) {
    const std::vector<GenerationInput> inputs = {input_of(question(document, 1), 0, "mine"),
                                                 input_of(question(document, 2), 0, "yours")};
    const auto ids = submit_all(s, inputs);
    s.finish();
    s.expect_own_answers(ids, inputs);
    return std::vector<std::int32_t>{s.shared[ids[0]], s.shared[ids[1]]};
  };
  {
    Sharing s(on(folder), 1000, 1024);
    EXPECT_EQ(ask_both(s), (std::vector<std::int32_t>{0, 0}));
    write_all(s);
  }
  Sharing s(on(folder), 1000, 1024);
  EXPECT_EQ(ask_both(s), (std::vector<std::int32_t>{320, 320}));
  EXPECT_EQ(s.keeper().disk()->stats().loaded, 20);
}

// Pages hold what one model made, in one way: whatever differs, they are others.
TEST(DiskTier, PagesOfAnotherModelOrFormAreNotTaken) {
  const auto identity = [](const EngineOptions& options, auto change) {
    TestEngine test(options);
    RunningModel model;
    model.engine = std::move(test.engine);
    model.identity = {.architecture = "llama", .weights = 1, .tokenizer = 2, .rope = 3};
    change(model.identity);
    return store_options(model, {}).identity;
  };
  const auto same = [](SessionIdentity&) {};
  const EngineOptions options{.context = 4096};
  EngineOptions deterministic = options, other_type = options;
  deterministic.deterministic = true;
  other_type.kv_cache_dtype = KvDtype::kF16;
  const std::vector<std::uint64_t> all = {identity(options, same),
                                          identity(deterministic, same),
                                          identity(other_type, same),
                                          identity(options, [](SessionIdentity& id) { id.architecture = "qwen2"; }),
                                          identity(options, [](SessionIdentity& id) { id.weights = 9; }),
                                          identity(options, [](SessionIdentity& id) { id.tokenizer = 9; }),
                                          identity(options, [](SessionIdentity& id) { id.rope = 9; })};
  EXPECT_EQ(identity(options, same), all[0]);
  EXPECT_EQ(std::set<std::uint64_t>(all.begin(), all.end()).size(), all.size());
}

}  // namespace
}  // namespace mneme
