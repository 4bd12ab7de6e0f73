// The engine with the shipped model: in a batch, in forks, in turns and through the decode path it answers as it does
// alone.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <string>

#include "src/engine/engine.h"
#include "src/engine/forward_backend.h"
#include "src/engine/session/running_model.h"
#include "src/formats/checkpoint.h"
#include "src/text/chat/chat_format.h"
#include "src/text/tokenizer/tokenizer.h"
#include "tests/error_message.h"
#include "tests/model/needle_prompts.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

using Tokens = std::vector<TokenId>;

class EngineModel : public testing::Test {
 protected:
  EngineModel() {
    NeedleMaker maker(NeedleMaker::made_up_prose(20000, 3), 77);
    for (NeedleKind kind : {NeedleKind::kNumber, NeedleKind::kWhere, NeedleKind::kRegister, NeedleKind::kNumber})
      prompts_.push_back(maker.make(kind, 1200 + 500 * prompts_.size()));
  }

  static std::unique_ptr<Engine> make_engine(bool deterministic, int max_batched_tokens) {
    EngineOptions options;
    options.context = 4096;
    options.max_batched_tokens = max_batched_tokens;
    options.deterministic = deterministic;
    auto threads = std::make_unique<ThreadPool>(kTestThreads);
    auto checkpoint = Checkpoint::open(std::string(MNEME_SOURCE_DIR) + "/models/needle-27m-q8_0.gguf");
    auto model = Model::load(std::move(checkpoint), {.context = 4096}, {.pool = threads.get()});
    return std::make_unique<Engine>(std::move(model), options, std::move(threads));
  }

  RequestInput ask(Tokens prompt) const {
    RequestInput input;
    input.prompt = std::move(prompt);
    input.max_tokens = 40;
    input.end_tokens = {*tokenizer_->eos()};
    return input;
  }
  Tokens turn(const NeedlePrompt& p, bool first = true) const {
    return format_.user_turn({.document = p.document, .question = p.question}, first);
  }

  // Steps until all have ended; the answers' tokens.
  static std::map<RequestId, Tokens> drain(Engine& engine, std::map<RequestId, Tokens> answers = {}) {
    while (!engine.idle()) step(engine, answers);
    engine.check_invariants();
    return answers;
  }
  static void step(Engine& engine, std::map<RequestId, Tokens>& answers) {
    for (const RequestEvent& e : engine.step()) {
      Tokens& answer = answers[e.id];
      if (e.token) answer.push_back(e.token->token);
    }
  }
  static Tokens alone(Engine& engine, const RequestInput& input) {
    const RequestId id = engine.start({}, input);
    return drain(engine)[id];
  }

  std::unique_ptr<Tokenizer> tokenizer_ =
      Tokenizer::make(Checkpoint::open_tokenizer(std::string(MNEME_SOURCE_DIR) + "/models/needle-27m-q8_0.gguf"));
  ChatFormat format_ = ChatFormat::detect(*tokenizer_);
  std::vector<NeedlePrompt> prompts_;
};

// What a device needs in order to compute a row with the same bits in every step.
TEST(DeviceOptions, DeterministicAsksForStepsThatADeviceCanTake) {
  const auto message = [](const EngineOptions& options) {
    return error_message(ErrorKind::kOption, [&] { check_device_options(options); });
  };
  EngineOptions options{.device = Device::kCuda, .max_sequences = 64, .max_batched_tokens = 256};
  options.deterministic = true;
  EXPECT_NO_THROW(check_device_options(options));
  options.max_batched_tokens = 255;
  EXPECT_THAT(message(options), ::testing::HasSubstr("--max-num-batched-tokens of at least 256, found 255"));
  options.device = Device::kCpu;
  EXPECT_NO_THROW(check_device_options(options));
  options = {.device = Device::kCuda, .max_sequences = 65};
  EXPECT_NO_THROW(check_device_options(options));
  options.deterministic = true;
  EXPECT_THAT(message(options), ::testing::HasSubstr("--max-num-seqs of at most 64, found 65"));
}

TEST(DeviceOptions, SpeculationIsRefusedOnADevice) {
  const SpeculationOptions ngram{.method = SpeculationOptions::Method::kNgram};
  EXPECT_NO_THROW(check_device_options({.device = Device::kCpu, .deterministic = true, .speculation = ngram}));
  EXPECT_NO_THROW(check_device_options({.device = Device::kCuda}));
  auto checkpoint = Checkpoint::open(std::string(MNEME_SOURCE_DIR) + "/models/needle-27m-q8_0.gguf");
  const auto start = [&] {
    start_model(std::move(checkpoint), nullptr, {.device = Device::kCuda, .speculation = ngram}, {});
  };
  EXPECT_THAT(
      error_message(ErrorKind::kOption, start),
      ::testing::StartsWith("speculative ngram:k=7,min=4: expected --device cpu, found cuda: its attention would "
                            "read the KV cache once for each draft; leave it out"));
}

TEST_F(EngineModel, ABatchAnswersAsEachDoesAlone) {
  for (bool deterministic : {true, false}) {
    const auto engine = make_engine(deterministic, 200);
    std::vector<Tokens> expected;
    for (const NeedlePrompt& p : prompts_) {
      expected.push_back(alone(*engine, ask(turn(p))));
      EXPECT_EQ(tokenizer_->decode(expected.back()), p.answer) << p.question;
    }
    std::vector<RequestId> ids;
    std::map<RequestId, Tokens> answers;
    for (const NeedlePrompt& p : prompts_) {
      ids.push_back(engine->start({}, ask(turn(p))));
      step(*engine, answers);
    }
    const RequestId given_up = engine->start({}, ask(turn(prompts_[0])));
    step(*engine, answers);
    engine->cancel(given_up);
    answers = drain(*engine, std::move(answers));
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(answers[ids[i]], expected[i]) << prompts_[i].question;
    EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
  }
}

TEST_F(EngineModel, ForksOfOneDocumentAnswerAsFreshSequences) {
  const auto engine = make_engine(false, 256);
  const NeedlePrompt& a = prompts_[3];
  const auto first = format_.user_turn_split({.document = a.document, .question = a.question}, true);
  const auto second = format_.user_turn_split({.document = a.document, .question = "Whose house is it?"}, true);
  RequestInput document = ask(first.document);
  document.max_tokens = 0;
  document.keep_sequence = true;
  const RequestId doc = engine->start({}, document);
  drain(*engine);
  const std::size_t document_bytes = engine->pool().shape().page_bytes() * engine->pool().n_used();

  const auto fresh = make_engine(false, 256);
  std::vector<RequestId> ids;
  std::vector<Tokens> expected;
  for (const auto& split : {first, second}) {
    Tokens all = split.document;
    all.insert(all.end(), split.question.begin(), split.question.end());
    RequestInput question = ask(split.question);
    ids.push_back(engine->start(Origin::fork(doc), question));
    question.decode_prompt_tail = 1000;  // all of it through the decode path
    ids.push_back(engine->start(Origin::fork(doc), question));
    expected.push_back(alone(*fresh, ask(all)));
  }
  auto answers = drain(*engine);
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(answers[ids[i]], expected[i / 2]) << i;
  EXPECT_EQ(tokenizer_->decode(answers[ids[0]]), a.answer);
  EXPECT_EQ(engine->kv_bytes(doc), document_bytes);
}

TEST_F(EngineModel, ASecondTurnIsThatOfAFreshSequenceOfAllTokens) {
  const auto engine = make_engine(false, 256);
  RequestInput input = ask(turn(prompts_[0]));
  input.keep_sequence = true;
  const RequestId id = engine->start({}, input);
  EXPECT_EQ(tokenizer_->decode(drain(*engine)[id]), prompts_[0].answer);
  Tokens all(engine->tokens(id).begin(), engine->tokens(id).end());

  Tokens more = format_.end_of_answer();
  const Tokens next = turn(prompts_[1], false);
  more.insert(more.end(), next.begin(), next.end());
  all.insert(all.end(), more.begin(), more.end());
  engine->start(Origin::next_turn(id), ask(more));
  const Tokens answer = drain(*engine)[id];
  EXPECT_EQ(answer, alone(*engine, ask(all)));
  EXPECT_EQ(tokenizer_->decode(answer), prompts_[1].answer);
  EXPECT_EQ(engine->pool().n_free(), engine->pool().n_blocks());
}

TEST(EngineOfACpu, RefusesLayersForAGpu) {
  auto threads = std::make_unique<ThreadPool>(1);
  auto checkpoint = Checkpoint::open(std::string(MNEME_SOURCE_DIR) + "/models/needle-27m-q8_0.gguf");
  auto model = Model::load(std::move(checkpoint), {.context = 256}, {.pool = threads.get()});
  EngineOptions options;
  options.context = 256;
  options.gpu_layers = 3;
  EXPECT_THAT(error_message(ErrorKind::kOption, [&] { Engine(std::move(model), options, std::move(threads)); }),
              testing::HasSubstr("gpu_layers 3: layers are placed with --device cuda only"));
}

}  // namespace
}  // namespace mneme
