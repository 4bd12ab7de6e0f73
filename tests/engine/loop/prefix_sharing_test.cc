// Who may begin from whose tokens, who waits for them, and what is given up for room: without a server and a model.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/engine/loop/prefix_waits.h"
#include "src/engine/loop/sequence_keeper.h"
#include "tests/engine/hash_model.h"

namespace mneme {
namespace {

constexpr std::int64_t kPageBytes = kHashBlocksPerPage * kPageTokens * 2 * 8 * 2;  // K and V of 8 bf16 values

// An engine behind a keeper, with a few lines for what GenerationTable does.
class Sharing {
 public:
  explicit Sharing(const KeeperOptions& options, std::int64_t pages = 1000, int max_batched_tokens = 32,
                   int max_sequences = 16) {
    EngineOptions o;
    o.max_sequences = max_sequences;
    o.context = std::min<std::int64_t>(pages * kPageTokens, 4096);
    o.kv_memory_bytes = pages * kPageBytes;
    o.max_batched_tokens = max_batched_tokens;
    TestEngine test(o);
    log_ = std::move(test.log);
    model_.engine = std::move(test.engine);
    keeper_.emplace(model_, options);
    waits_.emplace(model_, *keeper_);
  }
  Engine& engine() { return *model_.engine; }
  SequenceKeeper& keeper() { return *keeper_; }
  PrefixWaits& waits() { return *waits_; }

  RequestId submit(const GenerationInput& input, std::int32_t max_tokens = 4) {
    RequestInput r = request(input.prompt, max_tokens);
    r.end_tokens = {};
    r.keep_sequence = true;
    r.priority = input.priority;
    r.method = input.method;
    const RequestId id = model_.engine->submit(std::move(r));
    waits_->add(id, input);
    inputs_.emplace(id, &input);
    return id;
  }
  // One step, as GenerationTable::run_step() makes it.
  void step() {
    taken_over += waits_->plan();
    keeper_->make_room();
    engine().check_invariants();
    for (const RequestEvent& event : engine().step()) {
      const auto input = inputs_.find(event.id);
      if (input == inputs_.end()) continue;
      if (event.token) {
        answers[event.id].push_back(event.token->token);
        waits_->forget(event.id);
        shared[event.id] = engine().stats(event.id).shared_tokens;
        if (answers[event.id].size() == 1) keeper_->prompt_done(of(event.id, *input->second));
      }
      if (event.finished) end(event.id);
    }
    engine().check_invariants();
    prefilled = 0;
    for (const auto& rows : log_->steps)
      for (const std::int32_t n : rows) prefilled += n;
  }
  // Steps to the end of all of them.
  void finish() {
    for (int i = 0; i < 10000 && !engine().idle(); ++i) step();
    EXPECT_TRUE(engine().idle());
  }
  // Its client goes away.
  void cancel(RequestId id) {
    engine().stop(id);
    end(id);
  }
  std::map<RequestId, std::vector<std::int32_t>> answers;
  std::map<RequestId, std::int32_t> shared;    // tokens
  std::int64_t prefilled = 0, taken_over = 0;  // rows of all steps, answers' included

  // What they answer is what each answers alone.
  void expect_own_answers(const std::vector<RequestId>& ids, const std::vector<GenerationInput>& inputs) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      RequestInput alone = request(inputs[i].prompt, 4);
      alone.end_tokens = {};
      EXPECT_EQ(answers[ids[i]], answer_alone(inputs[i].prompt, alone).tokens) << i;
    }
  }
  SequenceKeeper::Request of(RequestId id, const GenerationInput& input, bool full_attention = true) {
    return {.id = id,
            .prompt_tokens = size32(input.prompt),
            .salt = input.cache_salt,
            .slot = input.slot,
            .full_attention = full_attention};
  }
  // Computes it to its end, and gives it to the keeper.
  RequestId run(const GenerationInput& input, std::int32_t max_tokens, bool full_attention = true) {
    const RequestId id = submit(input, max_tokens);
    inputs_.erase(id);
    waits_->plan();
    drain(engine());
    keeper_->ended(of(id, input, full_attention));
    waits_->forget(id);
    return id;
  }
  HashModelLog& log() { return *log_; }

 private:
  void end(RequestId id) {
    waits_->forget(id);
    keeper_->ended(of(id, *inputs_.at(id)));
    inputs_.erase(id);
  }

  std::map<RequestId, const GenerationInput*> inputs_;
  std::unique_ptr<HashModelLog> log_;
  RunningModel model_;
  std::optional<SequenceKeeper> keeper_;
  std::optional<PrefixWaits> waits_;
};

GenerationInput input_of(std::vector<TokenId> prompt, std::int32_t priority = 0, std::string salt = "") {
  GenerationInput input;
  input.prompt = std::move(prompt);
  input.priority = priority;
  input.cache_salt = std::move(salt);
  return input;
}

std::vector<TokenId> question(std::span<const TokenId> document, std::uint64_t seed) {
  return joined(document, random_prompt(20, seed));
}

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

// `n` questions of 20 tokens each about one document.
std::vector<GenerationInput> questions(std::span<const TokenId> document, std::size_t n, std::int32_t priority = 0) {
  std::vector<GenerationInput> inputs;
  for (std::size_t i = 0; i < n; ++i) inputs.push_back(input_of(question(document, 10 + i), priority));
  return inputs;
}

std::vector<RequestId> submit_all(Sharing& s, const std::vector<GenerationInput>& inputs) {
  std::vector<RequestId> ids;
  for (const GenerationInput& input : inputs) ids.push_back(s.submit(input));
  return ids;
}

// Rows of a question of 20 tokens and an answer of 4, whose last token is not computed.
constexpr std::int64_t kOwnRows = 20 + 3;

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
  EXPECT_EQ(s.prefilled, 128 + 4 * kOwnRows);
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
  EXPECT_EQ(s.prefilled, 256 + 2 * kOwnRows);
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
  EXPECT_EQ(s.prefilled, 4 * (128 + kOwnRows));
}

TEST(PrefixWaits, WithoutThePrefixCacheNobodyWaits) {
  Sharing s({.prefix_cache = false, .n_slots = 0});
  const auto inputs = questions(random_prompt(128, 1), 2);
  submit_all(s, inputs);
  s.finish();
  EXPECT_EQ(s.prefilled, 2 * (128 + kOwnRows));
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
  EXPECT_EQ(s.prefilled, 128 + 2 * kOwnRows);
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
  EXPECT_EQ(s.prefilled, 64 + 128 + 2 * kOwnRows);
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
  EXPECT_EQ(s.prefilled, 128 + 5 * kOwnRows);
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
  const RequestId fork = s.engine().fork(ids[0], more);
  s.cancel(ids[0]);
  s.finish();
  s.expect_own_answers({ids[1], ids[2]}, {inputs[1], inputs[2]});
  EXPECT_EQ(s.engine().stats(fork).shared_tokens, 96);
  s.engine().release(fork);
}

}  // namespace
}  // namespace mneme
