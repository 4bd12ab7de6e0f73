// Who may begin from whose tokens, who waits for them, and what is evicted for room: without a server and a model.
#include <gtest/gtest.h>

#include <deque>

#include "src/base/error.h"
#include "tests/engine/loop/sharing.h"

namespace mneme {
namespace {

// ---- SequenceKeeper

TEST(SequenceKeeper, ASlotSharesNothingAmongSalts) {
  Sharing s({.prefix_cache = false, .n_slots = 2});
  GenerationInput input = input_of(random_prompt(100, 1), 0, "mine");
  input.slot = 1;
  s.run(input, 4);
  EXPECT_FALSE(s.keeper().source_for(input.prompt, "", 1));
  EXPECT_FALSE(s.keeper().source_for(input.prompt, "yours", 1));
  ASSERT_TRUE(s.keeper().source_for(input.prompt, "mine", 1));
  EXPECT_EQ(s.keeper().source_for(input.prompt, "mine", 1)->n_tokens, 96);
}

TEST(SequenceKeeper, AnAnswerIsSharedWithFullAttentionOnly) {
  for (const bool full_attention : {true, false}) {
    Sharing s({.prefix_cache = true, .n_slots = 0});
    const GenerationInput input = input_of(random_prompt(64, 1));
    const RequestId id = s.run(input, 80, full_attention);
    const auto all = s.engine().tokens(id);
    ASSERT_EQ(all.size(), 144u);
    const auto source = s.keeper().source_for(std::vector<TokenId>(all.begin(), all.end()), "", {});
    ASSERT_TRUE(source);
    EXPECT_EQ(source->n_tokens, full_attention ? 128 : 64);
  }
}

// 10 pages: 3 cached; one runs with 1 and may take 3 more; 4 are wanted, and 6 are free.
TEST(SequenceKeeper, MakesRoomBesideWhatRunningRequestsMayTake) {
  Sharing s({.prefix_cache = true, .n_slots = 0}, 10);
  s.run(input_of(random_prompt(3 * 32, 1)), 1);
  EXPECT_EQ(s.keeper().cached(), 1);
  s.submit(input_of(random_prompt(20, 2)), 108);
  s.engine().step();
  EXPECT_EQ(s.engine().reserved_blocks(), 3 * kHashBlocksPerPage);
  EXPECT_EQ(s.engine().pool().n_free(), 6 * kHashBlocksPerPage);
  s.submit(input_of(random_prompt(4 * 32, 3)), 1);
  s.keeper().make_room();
  EXPECT_EQ(s.keeper().cached(), 0);
}

// ---- PrefixWaits

// All of it is computed, as the beginning of a longer one. Its last token is computed once more, for its logits.
TEST(PrefixWaits, APromptThatAnotherBeginsWithComputesItsLastPage) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto document = random_prompt(160, 1);
  const std::vector<GenerationInput> inputs = {input_of(document),
                                               input_of(std::vector<TokenId>(document.begin(), document.begin() + 64))};
  const RequestId longer = s.submit(inputs[0]);
  s.step();
  s.step();
  ASSERT_EQ(s.engine().cache(longer).length(), 64);
  const RequestId beginning = s.submit(inputs[1]);
  s.finish();
  EXPECT_EQ(s.shared[beginning], 32);
  s.expect_own_answers({longer, beginning}, inputs);
}

// 128 tokens are read in 4 steps of 32. The first question is not: nobody waits for that.
TEST(PrefixWaits, QuestionsAboutOneDocumentCostOneReading) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto inputs = questions(random_prompt(128, 1), 4);
  const auto ids = submit_all(s, inputs);
  for (int i = 0; i < 4; ++i) {
    s.step();
    EXPECT_EQ(s.waits().waiting(), 3) << i;
    EXPECT_EQ(s.engine().cache(ids[1]).length(), 0) << i;
  }
  s.finish();
  s.expect_own_answers(ids, inputs);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(s.shared[ids[i]], i == 0 ? 0 : 128);
  EXPECT_EQ(s.prefilled(), 128 + 4 * kOwnRows);
  EXPECT_EQ(s.waits().waiting(), 0);
}

// They share its first half when it is computed, and no more of it.
TEST(PrefixWaits, WaitsForTheSharedPartAlone) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto document = random_prompt(128, 1);
  const GenerationInput first = input_of(question(document, 10));
  const GenerationInput other = input_of(question(std::span(document).first(70), 11));
  s.submit(first);
  const RequestId id = s.submit(other);
  for (int i = 0; i < 2; ++i) s.step();
  EXPECT_EQ(s.waits().waiting(), 1);
  s.step();
  EXPECT_EQ(s.waits().waiting(), 0);
  EXPECT_EQ(s.engine().cache(id).length(), 64);
  s.finish();
}

// A waiting request takes what a less urgent one, which it does not wait for, has computed; that one takes the rest
// from it: a document is read once whatever the order.
TEST(PrefixWaits, AnUrgentRequestGoesOnFromALessUrgentOnesPart) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto document = random_prompt(256, 1);
  const auto slow = questions(document, 1, 0), urgent = questions(document, 1, 5);
  const RequestId first = s.submit(slow[0]);
  for (int i = 0; i < 3; ++i) s.step();
  const RequestId second = s.submit(urgent[0]);
  s.step();
  EXPECT_EQ(s.engine().stats(second).shared_tokens, 96);
  EXPECT_EQ(s.engine().cache(first).length(), 96) << "reads what the urgent one reads";
  s.finish();
  s.expect_own_answers({first, second}, {slow[0], urgent[0]});
  EXPECT_EQ(s.prefilled(), 256 + 2 * kOwnRows);
  EXPECT_EQ(s.taken_over, 160);
}

TEST(PrefixWaits, OtherTextsAndSaltsShareNothing) {
  Sharing s({.prefix_cache = true, .n_slots = 0}, 1000, 512);
  const auto document = random_prompt(128, 1);
  GenerationInput scored = input_of(question(document, 14), 0, "a");
  scored.score_prompt = 0;
  const std::vector<GenerationInput> inputs = {input_of(question(document, 10), 0, "a"),
                                               input_of(question(document, 11), 0, "b"),
                                               input_of(question(random_prompt(128, 2), 12), 0, "a"), scored};
  const auto ids = submit_all(s, inputs);
  s.step();
  EXPECT_EQ(s.waits().waiting(), 0);
  s.finish();
  for (const RequestId id : ids) EXPECT_EQ(s.shared[id], 0);
  EXPECT_EQ(s.prefilled(), 4 * (128 + kOwnRows));
}

TEST(PrefixWaits, WithoutThePrefixCacheNobodyWaits) {
  Sharing s({.prefix_cache = false, .n_slots = 0});
  const auto inputs = questions(random_prompt(128, 1), 2);
  submit_all(s, inputs);
  s.finish();
  EXPECT_EQ(s.prefilled(), 2 * (128 + kOwnRows));
}

// The leader is cancelled with a quarter of the document computed: the next one goes on from there, the others wait for
// that one.
TEST(PrefixWaits, OneOfThoseThatWaitTakesACancelledLeadersPart) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto inputs = questions(random_prompt(128, 1), 3);
  const auto ids = submit_all(s, inputs);
  s.step();
  s.cancel(ids[0]);
  s.step();
  EXPECT_EQ(s.engine().stats(ids[1]).shared_tokens, 32);
  EXPECT_EQ(s.waits().waiting(), 1);
  s.finish();
  s.expect_own_answers({ids[1], ids[2]}, {inputs[1], inputs[2]});
  EXPECT_EQ(s.prefilled(), 128 + 2 * kOwnRows);
}

// It leaves nothing behind: its sequence is not kept.
TEST(PrefixWaits, ALeaderThatVanishesWithItsPagesIsReplaced) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto inputs = questions(random_prompt(128, 1), 3);
  const auto ids = submit_all(s, inputs);
  for (int i = 0; i < 2; ++i) s.step();
  s.waits().forget(ids[0]);
  s.engine().cancel(ids[0]);
  s.finish();
  s.expect_own_answers({ids[1], ids[2]}, {inputs[1], inputs[2]});
  EXPECT_EQ(s.prefilled(), 64 + 128 + 2 * kOwnRows);
}

// A step that fails undoes its rows alone; whoever waits goes on waiting.
TEST(PrefixWaits, AFailedStepChangesNothing) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto inputs = questions(random_prompt(128, 1), 3);
  const auto ids = submit_all(s, inputs);
  s.step();
  s.log().fail_in = 0;
  EXPECT_THROW(s.step(), Error);
  s.finish();
  s.expect_own_answers(ids, inputs);
  for (std::size_t i = 1; i < 3; ++i) EXPECT_EQ(s.shared[ids[i]], 128);
}

// One place: each begins when the one before has ended, and takes what was computed by then, not what was when it came.
TEST(PrefixWaits, APrefixIsTakenWhenTheTurnComes) {
  Sharing s({.prefix_cache = true, .n_slots = 0}, 1000, 32, 1);
  const auto inputs = questions(random_prompt(128, 1), 5);
  const auto ids = submit_all(s, inputs);
  s.finish();
  s.expect_own_answers(ids, inputs);
  EXPECT_EQ(s.prefilled(), 128 + 5 * kOwnRows);
}

// A request whose document is being read begins within a bounded number of steps, whatever comes behind it: the
// document's, and those of the prompts before it.
TEST(PrefixWaits, AStreamOfOthersStarvesNobody) {
  Sharing s({.prefix_cache = true, .n_slots = 0}, 1000, 32, 4);
  const auto document = random_prompt(128, 1);
  std::deque<GenerationInput> inputs = {input_of(question(document, 1)), input_of(question(document, 2))};
  s.submit(inputs[0]);
  const RequestId waiting = s.submit(inputs[1]);
  int steps = 0;
  for (; !s.answers.contains(waiting) && steps < 100; ++steps) {
    inputs.push_back(input_of(question(steps % 2 == 0 ? document : random_prompt(96, 100 + steps), 200 + steps)));
    s.submit(inputs.back());
    s.step();
  }
  // Four steps of the document, one with its end and the first question, one for the second.
  EXPECT_LE(steps, 6);
}

// Under memory for hardly more than one: pages that others wait with are never lost to them for good.
TEST(PrefixWaits, SharesUnderTightMemory) {
  Sharing s({.prefix_cache = true, .n_slots = 0}, 9, 32);
  const auto document = random_prompt(128, 1);
  std::deque<GenerationInput> inputs;
  std::vector<RequestId> ids;
  for (std::uint64_t i = 0; i < 12; ++i) {
    inputs.push_back(input_of(question(i % 3 == 2 ? random_prompt(96, i) : document, 40 + i), i % 4 == 3 ? 1 : 0));
    ids.push_back(s.submit(inputs.back()));
  }
  s.finish();
  s.expect_own_answers(ids, {inputs.begin(), inputs.end()});
}

// A fork of a request that runs shares with it, and is a source of its own.
TEST(PrefixWaits, ForksOfALeaderTakeNothingAway) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto inputs = questions(random_prompt(128, 1), 3);
  const auto ids = submit_all(s, inputs);
  for (int i = 0; i < 3; ++i) s.step();
  RequestInput more = request(random_prompt(5, 9), 4);
  more.end_tokens = {};
  const RequestId fork = s.engine().start(Origin::fork(ids[0]), more);
  s.cancel(ids[0]);
  s.finish();
  s.expect_own_answers({ids[1], ids[2]}, {inputs[1], inputs[2]});
  EXPECT_EQ(s.engine().stats(fork).shared_tokens, 96);
  s.engine().cancel(fork);
}

}  // namespace
}  // namespace mneme
