// Who may begin from whose tokens, who waits for them, and what is given up for room: without a server and a model.
#include <gtest/gtest.h>

#include <algorithm>

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
  explicit Sharing(const KeeperOptions& options, std::int64_t pages = 1000, int max_batched_tokens = 32) {
    EngineOptions o;
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
    const auto source = keeper_->source_for(input.prompt, input.cache_salt, input.slot);
    const auto leader = waits_->leader_for(input, source);
    RequestInput r = request(input.prompt, max_tokens);
    r.end_tokens = {};
    r.keep_sequence = true;
    r.priority = input.priority;
    const RequestId id = model_.engine->submit(std::move(r));
    waits_->add(id, input, leader);
    return id;
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
    drain(engine());
    keeper_->ended(of(id, input, full_attention));
    waits_->forget(id);
    return id;
  }

 private:
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

TEST(PrefixWaits, QuestionsAboutOneDocumentWaitForItsFirstReader) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto document = random_prompt(128, 1);
  std::vector<GenerationInput> inputs;
  for (std::uint64_t i = 0; i < 4; ++i) inputs.push_back(input_of(question(document, 10 + i)));
  std::vector<RequestId> ids;
  for (const GenerationInput& input : inputs) ids.push_back(s.submit(input));
  for (int step = 0; step < 4; ++step) {
    EXPECT_TRUE(s.waits().release().empty()) << step;
    s.engine().step();
  }
  // The document is computed, the first question is not: nobody waits for that.
  const auto released = s.waits().release();
  ASSERT_EQ(released.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(released[i].id, ids[i + 1]);
    EXPECT_EQ(released[i].n_tokens, 128);
  }
  s.engine().check_invariants();
  const Drained drained = drain(s.engine());
  for (std::size_t i = 0; i < 4; ++i) {
    RequestInput alone = request(inputs[i].prompt, 4);
    alone.end_tokens = {};
    EXPECT_EQ(drained.of(ids[i]), answer_alone(inputs[i].prompt, alone)) << i;
    EXPECT_EQ(s.engine().stats(ids[i]).shared_tokens, i == 0 ? 0 : 128);
  }
}

TEST(PrefixWaits, NobodyWaitsForLessUrgentRequestsNorForOtherTextsOrSalts) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto document = random_prompt(128, 1);
  const GenerationInput first = input_of(question(document, 10), 0, "a");
  s.submit(first);
  EXPECT_TRUE(s.waits().leader_for(input_of(question(document, 11), 0, "a"), {}));
  EXPECT_TRUE(s.waits().leader_for(input_of(question(document, 11), -1, "a"), {}));
  EXPECT_FALSE(s.waits().leader_for(input_of(question(document, 11), 1, "a"), {}));
  EXPECT_FALSE(s.waits().leader_for(input_of(question(document, 11), 0, "b"), {}));
  EXPECT_FALSE(s.waits().leader_for(input_of(random_prompt(128, 2), 0, "a"), {}));
  EXPECT_FALSE(s.waits().leader_for(input_of(question(document, 11), 0, "a"), PrefixWaits::Source{.n_tokens = 128}));
  GenerationInput scored = input_of(question(document, 11), 0, "a");
  scored.score_prompt = 0;
  EXPECT_FALSE(s.waits().leader_for(scored, {}));
  Sharing off({.prefix_cache = false, .n_slots = 0});
  off.submit(first);
  EXPECT_FALSE(off.waits().leader_for(first, {}));
}

// The leader is cancelled with a quarter of the document computed: the next one goes on from there, the others wait for
// that one.
TEST(PrefixWaits, OneOfThoseThatWaitTakesTheLeadersPart) {
  Sharing s({.prefix_cache = true, .n_slots = 0});
  const auto document = random_prompt(128, 1);
  std::vector<GenerationInput> inputs;
  for (std::uint64_t i = 0; i < 3; ++i) inputs.push_back(input_of(question(document, 10 + i)));
  std::vector<RequestId> ids;
  for (const GenerationInput& input : inputs) ids.push_back(s.submit(input));
  s.engine().step();
  s.waits().forget(ids[0]);
  s.engine().stop(ids[0]);
  s.keeper().ended(s.of(ids[0], inputs[0]));
  const auto released = s.waits().release();
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].id, ids[1]);
  EXPECT_EQ(released[0].n_tokens, 32);
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(s.waits().release().empty()) << step;
    s.engine().step();
  }
  const auto last = s.waits().release();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].n_tokens, 128);
  // Without anybody to wait for, nobody waits.
  s.waits().forget(ids[1]);
  s.waits().forget(ids[2]);
  EXPECT_FALSE(s.waits().leader_for(inputs[2], {}));
}

}  // namespace
}  // namespace mneme
