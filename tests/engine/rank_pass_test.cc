// Engines of two ranks with the shipped model, one that leads and one that follows: the answers of one engine, in
// batches, forks and turns; a rank that ends ends the others' steps.
#include "src/engine/ranks/rank_pass.h"

#include <gmock/gmock.h>

#include <map>

#include "src/engine/ranks/rank_engine.h"
#include "src/model/ranks/rank_checkpoint.h"
#include "src/text/chat/chat_format.h"
#include "src/text/tokenizer/tokenizer.h"
#include "tests/error_message.h"
#include "tests/model/needle_prompts.h"
#include "tests/parallel/ranks.h"

namespace mneme {
namespace {

using parallel_test::in_threads;
using testing::Each;
using testing::HasSubstr;
using Tokens = std::vector<TokenId>;

const std::string kModel = std::string(MNEME_SOURCE_DIR) + "/models/needle-27m-q8_0.gguf";

EngineOptions options() {
  EngineOptions o;
  o.context = 2048;
  o.max_batched_tokens = 256;
  o.deterministic = true;
  return o;
}

std::unique_ptr<Engine> one_engine() {
  auto threads = std::make_unique<ThreadPool>(1);
  auto model = Model::load(Checkpoint::open(kModel), {.context = 2048}, {.pool = threads.get()});
  return std::make_unique<Engine>(std::move(model), options(), std::move(threads));
}

std::unique_ptr<Engine> rank_engine(Collective& ranks) {
  auto threads = std::make_unique<ThreadPool>(1);
  const CpuContext context{.pool = threads.get(), .rounding = Rounding::kFixed};
  auto part = Model::load(rank_checkpoint(Checkpoint::open(kModel), ranks.rank(), ranks.size()), {.context = 2048},
                          {.pool = threads.get()});
  return std::make_unique<RankEngine>(std::make_unique<RankPass>(std::move(part), context, ranks), options(),
                                      std::move(threads));
}

// Repeats the leader's calls to the end.
void follow(Engine& engine) {
  while (repeat_next_call(engine, [](std::uint8_t, std::span<const std::byte>) {})) {
  }
}

struct Prompts {
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(Checkpoint::open_tokenizer(kModel));
  ChatFormat format = ChatFormat::detect(*tokenizer);
  std::vector<NeedlePrompt> needles;

  Prompts() {
    NeedleMaker maker(NeedleMaker::made_up_prose(20000, 3), 77);
    for (const NeedleKind kind : {NeedleKind::kNumber, NeedleKind::kWhere}) needles.push_back(maker.make(kind, 900));
  }
  RequestInput ask(int i) const {
    RequestInput input;
    input.prompt = format.user_turn({.document = needles[i].document, .question = needles[i].question}, true);
    input.max_tokens = 16;
    input.end_tokens = {*tokenizer->eos()};
    input.keep_sequence = true;
    return input;
  }
};

void drain(Engine& engine, std::map<RequestId, Tokens>& answers) {
  while (!engine.idle())
    for (const RequestEvent& e : engine.step())
      if (e.token) answers[e.id].push_back(e.token->token);
}

// Two prompts in a batch, two forks of the first with drawn tokens, and the next turn of the second.
std::vector<Tokens> script(Engine& engine, const Prompts& prompts, const std::string& method) {
  std::map<RequestId, Tokens> answers;
  std::shared_ptr<const Plan> plan;
  if (!method.empty()) plan = compile(parse_recipe(method), engine.method_shape());
  std::vector<RequestId> ids;
  for (int i = 0; i < 2; ++i) {
    RequestInput input = prompts.ask(i);
    input.method = plan;
    ids.push_back(engine.start({}, std::move(input)));
  }
  drain(engine, answers);
  for (int seed = 0; seed < 2; ++seed) {
    RequestInput more;
    more.max_tokens = 8;
    more.sampling.temperature = 1;
    more.sampling.seed = seed;
    more.method = plan;
    ids.push_back(engine.start(Origin::fork(ids[0]), std::move(more)));
  }
  drain(engine, answers);
  std::vector<Tokens> out;
  for (const RequestId id : ids) out.push_back(answers[id]);
  return out;
}

TEST(RankPass, TwoRanksAnswerAsOne) {
  const Prompts prompts;
  for (const char* method :
       {"", "freekv:budget=512,sink=64,recent=64", "quest:budget=512,sink=64,recent=64", "snapkv:budget=512"}) {
    const auto alone = one_engine();
    const std::vector<Tokens> expected = script(*alone, prompts, method);
    ASSERT_FALSE(expected[0].empty());
    std::vector<Tokens> answers;
    EXPECT_THAT(in_threads(2,
                           [&](Collective& ranks) {
                             const auto engine = rank_engine(ranks);
                             ranks.rank() == 0 ? void(answers = script(*engine, prompts, method)) : follow(*engine);
                             engine->check_invariants();
                           }),
                Each(""))
        << method;
    ASSERT_EQ(answers.size(), 4u) << method;
    // Greedy answers; what is drawn may turn at a logit's last bits.
    EXPECT_EQ(answers[0], expected[0]) << method;
    EXPECT_EQ(answers[1], expected[1]) << method;
  }
}

TEST(RankPass, ARankHasItsHeadsPagesAlone) {
  in_threads(2, [](Collective& ranks) {
    const auto engine = rank_engine(ranks);
    if (ranks.rank() != 0) return follow(*engine);
    EXPECT_EQ(engine->pool().shape().n_kv_heads, 1);
    EXPECT_EQ(engine->pool().shape().bytes_per_token(), 2048u);
  });
}

TEST(RankPass, ARankThatEndsEndsTheOthersSteps) {
  const Prompts prompts;
  const std::vector<std::string> errors = in_threads(2, [&](Collective& ranks) {
    const auto engine = rank_engine(ranks);
    if (ranks.rank() == 1) {
      for (int calls = 0; calls < 2; ++calls)
        repeat_next_call(*engine, [](std::uint8_t, std::span<const std::byte>) {});
      return;
    }
    engine->start({}, prompts.ask(0));
    while (!engine->idle()) engine->step();
  });
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[0], HasSubstr("rank 1 ended"));
}

TEST(RankPass, MethodsThatDecideForALayerAreRefused) {
  EXPECT_THAT(in_threads(2,
                         [](Collective& ranks) {
                           const auto engine = rank_engine(ranks);
                           if (ranks.rank() != 0) return follow(*engine);
                           for (const char* method : {"actqkv", "louiskv", "tova", "refreekv", "adakv"}) {
                             RequestInput input;
                             input.prompt = {1, 2, 3};
                             input.method = compile(parse_recipe(method), engine->method_shape());
                             EXPECT_THAT(error_message(ErrorKind::kUnsupported, [&] { engine->start({}, input); }),
                                         HasSubstr("ranks do not do yet"))
                                 << method;
                           }
                         }),
              Each(""));
}

}  // namespace
}  // namespace mneme
