// Models whose layers keep a state: who begins from whose tokens, where only kept states can be gone on from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "src/engine/loop/engine_loop.h"
#include "tests/engine/hybrid_engine.h"
#include "tests/engine/loop/sharing.h"
#include "tests/error_message.h"

namespace mneme {
namespace {

using testing::HasSubstr;

KeeperOptions cached() {
  return {.prefix_cache = true, .n_slots = 0};
}

std::vector<TokenId> answer_of(const std::vector<TokenId>& prompt, int max_tokens = 4) {
  const auto all = hybrid_alone(prompt, max_tokens);
  return {all.begin() + std::ssize(prompt), all.end()};
}

std::vector<GenerationInput> hybrid_questions(const std::vector<TokenId>& document, int n) {
  std::vector<GenerationInput> inputs;
  for (int i = 0; i < n; ++i) inputs.push_back(input_of(joined(document, random_prompt_of(90, 20 + i))));
  return inputs;
}

// The second one waits for the document, of which the first one keeps the state.
TEST(HybridSharing, QuestionsAtOnceReadADocumentOnceAndAnswerAsAlone) {
  for (const int batched : {1000, 100, 33, 7}) {
    Sharing s(cached(), hybrid_engine(16 << 20, batched));
    const auto inputs = hybrid_questions(random_prompt_of(200, 1), 3);
    const auto ids = submit_all(s, inputs);
    s.finish();
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(s.answers[ids[i]], answer_of(inputs[i].prompt)) << i;
      EXPECT_EQ(s.shared[ids[i]], i == 0 ? 0 : 192) << i;
    }
  }
}

// Nobody knew that the first question's document would be asked again: the second one computes it, and keeps its state.
TEST(HybridSharing, TheSecondQuestionKeepsTheStateOfWhatBothShare) {
  Sharing s(cached(), hybrid_engine());
  const auto inputs = hybrid_questions(random_prompt_of(200, 1), 4);
  for (std::size_t i = 0; i < 3; ++i) {
    const RequestId id = s.submit(inputs[i]);
    s.finish();
    EXPECT_EQ(s.answers[id], answer_of(inputs[i].prompt)) << i;
    EXPECT_EQ(s.shared[id], i < 2 ? 0 : 192) << i;
  }
  // Asked once more, the first one goes on from its own copy, and is used last; the fourth has the document's.
  for (const std::size_t i : {std::size_t{0}, std::size_t{3}}) {
    const RequestId id = s.submit(inputs[i]);
    s.finish();
    EXPECT_EQ(s.answers[id], answer_of(inputs[i].prompt)) << i;
    EXPECT_EQ(s.shared[id], i == 0 ? 256 : 192) << i;
  }
}

// Prompts end with a header of three tokens, and the next ones have the answers in other tokens than were sampled.
TEST(HybridSharing, TurnsGoOnFromTheEndOfTheLastPrompt) {
  Sharing s(cached(), hybrid_engine());
  const std::vector<TokenId> header = random_prompt_of(3, 99);
  std::vector<TokenId> chat = random_prompt_of(70, 1), before;
  for (std::uint64_t turn = 0; turn < 12; ++turn) {
    const GenerationInput input = input_of(joined(chat, header));
    const RequestId id = s.submit(input);
    s.finish();
    EXPECT_EQ(s.answers[id], answer_of(input.prompt)) << turn;
    const auto last = static_cast<std::int32_t>(before.size() - 5) / 64 * 64;
    EXPECT_EQ(s.shared[id], turn == 0 ? 0 : last) << turn;
    before = chat;
    chat = joined(joined(chat, random_prompt_of(10, 100 + turn)), random_prompt_of(25, 200 + turn));
  }
  // The last turn is edited: what is behind the turn before it is computed again.
  const GenerationInput edited = input_of(joined(joined(before, random_prompt_of(50, 300)), header));
  const RequestId id = s.submit(edited);
  s.finish();
  EXPECT_EQ(s.answers[id], answer_of(edited.prompt));
  EXPECT_EQ(s.shared[id], static_cast<std::int32_t>(before.size() - 5) / 64 * 64);
}

// The state is of all tokens, whole pages or not. Without --deterministic answers are shared too.
TEST(HybridSharing, ATurnGoesOnFromTheEndOfAnAnswer) {
  for (const bool slots : {false, true}) {
    Sharing s({.prefix_cache = !slots, .n_slots = slots ? 2 : 0}, hybrid_engine(16 << 20, 100, false));
    GenerationInput first = input_of(random_prompt_of(150, 1));
    if (slots) first.slot = 1;
    const RequestId id = s.run(first, 30);
    const auto n = s.engine().cache(id).length();
    EXPECT_EQ(n, 150 + 29);
    GenerationInput next = input_of(joined(sequence_of(s.engine(), id), random_prompt_of(30, 2)));
    next.slot = first.slot;
    EXPECT_EQ(s.keeper().source_for(next.prompt, "", next.slot)->n_tokens, n);
    const RequestId second = s.submit(next);
    s.finish();
    EXPECT_EQ(s.shared[second], n);
  }
}

TEST(HybridSharing, LittleMemoryChangesNoAnswer) {
  for (const std::int64_t kib : {120, 200, 400}) {
    Sharing s(cached(), hybrid_engine(kib << 10));
    const auto inputs = hybrid_questions(random_prompt_of(96, 1), 6);
    const auto ids = submit_all(s, inputs);
    s.finish();
    for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(s.answers[ids[i]], answer_of(inputs[i].prompt)) << i;
  }
}

// The tokens of each answer to a prompt.
class Answers final : public GenerationSink {
 public:
  void on_event(GenerationEvent event) override {
    const std::lock_guard lock(mutex_);
    if (event.failure) ADD_FAILURE() << event.failure->message;
    if (event.prompt) cached_ = event.prompt->cached_tokens;
    for (const TokenScore& token : event.piece.tokens) tokens_[event.choice].push_back(token.token);
    n_ended_ += event.piece.end ? 1 : 0;
    changed_.notify_all();
  }
  std::map<std::int32_t, std::vector<TokenId>> wait(int n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_ended_ == n; });
    return tokens_;
  }
  std::int32_t cached() const { return cached_; }  // of answers that have ended

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int32_t, std::vector<TokenId>> tokens_;
  std::int32_t cached_ = 0;
  int n_ended_ = 0;
};

// As the server asks: requests at once, two answers each, and the same again.
TEST(HybridSharing, TheLoopsAnswersAreThoseOfRequestsAlone) {
  const auto start = [] {
    return start_model(Checkpoint::open(MNEME_SOURCE_DIR "/tests/golden/data/qwen3-5"), nullptr,
                       {.context = 250,
                        .kv_memory_bytes = 4 << 20,
                        .max_batched_tokens = 48,
                        .threads = kTestThreads,
                        .pin_threads = false,
                        .deterministic = true},
                       {});
  };
  NoLoopMetrics metrics;
  const auto deliver = [](std::vector<Delivery> news) {
    for (Delivery& d : news) d.sink->on_event(std::move(d.event));
  };
  const auto ask = [](EngineLoop& loop, const std::vector<TokenId>& prompt) {
    auto sink = std::make_shared<Answers>();
    GenerationInput input = input_of(prompt);
    input.n = 2;
    input.max_tokens = 12;
    input.stop.ignore_end = true;
    EXPECT_TRUE(loop.submit(std::move(input), sink));
    return sink;
  };
  const auto document = random_prompt_of(140, 1);
  const std::vector<std::vector<TokenId>> prompts = {joined(document, random_prompt_of(40, 2)),
                                                     joined(document, random_prompt_of(50, 3)), document};
  std::vector<std::map<std::int32_t, std::vector<TokenId>>> expected;
  for (const auto& prompt : prompts) {
    EngineLoop alone(start, {.max_in_flight = 64, .keeper = {}}, metrics, deliver);
    expected.push_back(ask(alone, prompt)->wait(2));
    EXPECT_EQ(expected.back()[0].size(), 12u);
    EXPECT_EQ(expected.back()[0], expected.back()[1]);
  }
  EngineLoop loop(start, {.max_in_flight = 64, .keeper = cached()}, metrics, deliver);
  for (const bool again : {false, true}) {
    std::vector<std::shared_ptr<Answers>> asked;
    for (const auto& prompt : prompts) asked.push_back(ask(loop, prompt));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(asked[i]->wait(2), expected[i]) << i;
      EXPECT_TRUE(!again || asked[i]->cached() >= 128) << i;
    }
  }
}

TEST(HybridSharing, TiersUnderTheCacheAreRefused) {
  KeeperOptions host = cached(), disk = cached();
  host.host_bytes = 1 << 20;
  disk.disk = DiskOptions{.folder = "/nowhere", .bytes = 1 << 20};
  for (const auto& [options, name] : {std::pair(host, "--kv-host-gib: "), std::pair(disk, "--kv-disk: ")}) {
    const std::string message = error_message(ErrorKind::kUnsupported, [&] { Sharing(options, hybrid_engine()); });
    EXPECT_THAT(message, HasSubstr(name));
    EXPECT_THAT(message, HasSubstr("linear attention has states"));
    EXPECT_THAT(message, HasSubstr("leave the option out"));
  }
}

}  // namespace
}  // namespace mneme
