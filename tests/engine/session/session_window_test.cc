// gpt-oss, whose every second layer keeps a window: answers, forks and sessions are those of an engine that keeps all
// keys and values, in less memory.
#include <gmock/gmock.h>

#include <filesystem>

#include "src/engine/session/running_model.h"
#include "src/engine/session/session_store.h"
#include "tests/engine/session/session_files.h"
#include "tests/engine/session/session_fixture.h"
#include "tests/model/test_models.h"

namespace mneme {
namespace {

using testing::SizeIs;
using Tokens = std::vector<TokenId>;

constexpr std::int32_t kAnswerTokens = 8;

class SessionWindowTest : public ::testing::Test, protected SessionFiles {
 protected:
  // A window of 20 tokens in one of two layers. whole: as with room in a file, all layers keep everything.
  RunningModel model(const char* method, bool whole, const ModelConfig& config = small_config(Architecture::kGptOss)) {
    auto checkpoint = std::make_unique<MemoryCheckpoint>(config, DType::kF32);
    checkpoint->fill(17);
    EngineOptions options{.context = 500, .max_batched_tokens = 48, .threads = 1, .pin_threads = false};
    options.deterministic = true;
    if (whole) options.kv_spill = {.folder = folder_.string(), .bytes = 1 << 20};
    if (*method != '\0') options.kv.recipe = parse_recipe(method);
    return start_model(std::move(checkpoint), std::make_unique<TextSide>(*Checkpoint::open(kModel)), options, {}, {});
  }
  static RequestInput turn(std::int32_t n_tokens, std::uint64_t seed, const RunningModel& model) {
    RequestInput input;
    input.prompt = random_tokens(n_tokens, small_config(Architecture::kGptOss).vocab, seed);
    input.max_tokens = kAnswerTokens;
    input.keep_sequence = true;
    input.method = model.method;
    return input;
  }
  static Tokens answer(Engine& engine) {
    Tokens out;
    while (!engine.idle()) {
      for (const RequestEvent& e : engine.step())
        if (e.token) out.push_back(e.token->token);
      engine.check_invariants();
    }
    return out;
  }
};

TEST_F(SessionWindowTest, AnswersForksAndSessionsAreThoseOfAllPages) {
  for (const char* method : {"", "freekv:budget=128,sink=32,recent=32", "snapkv:budget=96"}) {
    std::vector<Tokens> expected;
    for (const bool whole : {true, false}) {
      RunningModel here = model(method, whole), there = model(method, whole);
      Engine& engine = *here.engine;
      std::vector<Tokens> answers;
      const RequestId id = engine.start({}, turn(300, 5, here));
      answers.push_back(answer(engine));
      EXPECT_EQ(engine.cache(id).released_pages() > 0, !whole);
      // 307 tokens are 10 pages of each layer; behind 20 + 64 tokens lie 7.
      if (*method == '\0') {
        EXPECT_EQ(engine.cache(id).n_blocks(), whole ? 40 : 40 - 2 * 7);
      }
      engine.start(Origin::prefix(id, 130), turn(20, 6, here));
      answers.push_back(answer(engine));
      engine.start(Origin::fork(id), turn(7, 7, here));
      answers.push_back(answer(engine));
      const std::filesystem::path path = folder_ / (whole ? "whole" : "window");
      save_sequence(here, id, {.identity = {}, .answered = true, .tokens = {}}, path);
      const RestoredSequence restored = restore_sequence(there, path);
      there.engine->check_invariants();
      EXPECT_EQ(there.engine->cache(restored.id).n_blocks(), engine.cache(id).n_blocks());
      there.engine->start(Origin::next_turn(restored.id), turn(20, 8, there));
      answers.push_back(answer(*there.engine));
      engine.start(Origin::next_turn(id), turn(20, 8, here));
      EXPECT_EQ(answer(engine), answers.back());
      for (const Tokens& a : answers) EXPECT_THAT(a, SizeIs(kAnswerTokens));
      if (whole) expected = answers;
      EXPECT_EQ(answers, expected) << method;
    }
    if (*method != '\0') continue;
    EXPECT_LT(std::filesystem::file_size(folder_ / "window"), std::filesystem::file_size(folder_ / "whole"));
    // Files of either kind are read by either.
    for (const bool whole : {true, false}) {
      RunningModel other = model(method, !whole);
      const RestoredSequence restored = restore_sequence(other, folder_ / (whole ? "whole" : "window"));
      other.engine->start(Origin::next_turn(restored.id), turn(20, 8, other));
      EXPECT_EQ(answer(*other.engine), expected.back());
    }
  }
}

// Layers 65, 67, ..., 87 have the window.
TEST_F(SessionWindowTest, LayersBeyondThe64thKeepTheirWindow) {
  ModelConfig config = small_config();
  config.n_layers = 88;
  config.hidden = config.ffn = 16;
  config.n_heads = config.n_kv_heads = 2;
  config.head_dim = 8;
  config.sliding_window = 20;
  config.windowed.assign(88, false);
  for (std::size_t l = 65; l < 88; l += 2) config.windowed[l] = true;
  std::vector<Tokens> answers;
  for (const bool whole : {true, false}) {
    RunningModel here = model("", whole, config);
    const RequestId id = here.engine->start(Origin{}, turn(300, 5, here));
    answers.push_back(answer(*here.engine));
    // 307 tokens are 10 pages of each layer and KV head; behind 20 + 64 tokens lie 7.
    EXPECT_EQ(here.engine->cache(id).n_blocks(), 88 * 2 * 10 - (whole ? 0 : 12 * 2 * 7));
  }
  EXPECT_EQ(answers[0], answers[1]);
}

}  // namespace
}  // namespace mneme
