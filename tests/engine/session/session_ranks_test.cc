// Sessions that 1, 2 or 4 ranks saved and as many others restored: the next turn is that of one rank; files that do not
// belong together, ranks that cannot write.
#include "src/engine/session/session_ranks.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/engine/session/session_files.h"
#include "tests/engine/session/session_fixture.h"
#include "tests/error_message.h"
#include "tests/model/test_models.h"
#include "tests/parallel/ranks.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;
using parallel_test::in_threads;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;
using Tokens = std::vector<TokenId>;

constexpr std::int32_t kPrompt = 150, kAnswer = 6;

// A rank's part of a small model with four KV heads.
RunningModel rank_of(Collective* ranks, const char* method) {
  ModelConfig config = small_config(Architecture::kLlama);
  config.n_kv_heads = 4;
  auto checkpoint = std::make_unique<MemoryCheckpoint>(config, DType::kF32);
  checkpoint->fill(17);
  EngineOptions options{.context = 400, .max_batched_tokens = 64, .threads = 1, .pin_threads = false};
  options.deterministic = true;
  if (*method != '\0') options.kv.recipe = parse_recipe(method);
  return start_model(std::move(checkpoint), std::make_unique<TextSide>(*Checkpoint::open(kModel)), options, {},
                     {.world = ranks});
}

RequestInput turn(std::int32_t n_tokens, std::uint64_t seed, const RunningModel& model) {
  RequestInput input;
  input.prompt = random_tokens(n_tokens, small_config(Architecture::kLlama).vocab, seed);
  input.max_tokens = kAnswer;
  input.keep_sequence = true;
  input.method = model.method;
  return input;
}

Tokens answer(Engine& engine) {
  Tokens out;
  while (!engine.idle())
    for (const RequestEvent& e : engine.step())
      if (e.token) out.push_back(e.token->token);
  return out;
}

// `lead` on rank 0 of `size`; what each rank threw.
std::vector<std::string> with_ranks(int size, const char* method, const std::function<void(RunningModel&)>& lead) {
  return in_threads(size, [&](Collective& ranks) {
    RunningModel model = rank_of(size == 1 ? nullptr : &ranks, method);
    ranks.rank() == 0 ? lead(model) : follow(model);
  });
}

class SessionRanksTest : public ::testing::Test, protected SessionFiles {
 protected:
  void save(int size, const char* method) {
    ASSERT_THAT(with_ranks(size, method,
                           [&](RunningModel& model) {
                             const RequestId id = model.engine->start({}, turn(kPrompt, 5, model));
                             answer(*model.engine);
                             save_sequence(model, id, {.identity = {}, .answered = true, .tokens = {}}, path_);
                             save_sequence(model, id, {.identity = {}, .answered = true, .tokens = {}}, path_);
                           }),
                Each(""));
  }
  Tokens go_on(int size, const char* method) {
    Tokens out;
    EXPECT_THAT(with_ranks(size, method,
                           [&](RunningModel& model) {
                             const RestoredSequence restored = restore_sequence(model, path_);
                             EXPECT_TRUE(restored.content.answered);
                             model.engine->start(Origin::next_turn(restored.id), turn(20, 6, model));
                             out = answer(*model.engine);
                           }),
                Each(""));
    return out;
  }
  std::size_t n_files() const { return std::distance(fs::directory_iterator(folder_), {}); }
};

TEST_F(SessionRanksTest, AnyNumberOfRanksGoesOnWithWhatAnySaved) {
  for (const char* method : {"", "freekv:budget=128,sink=32,recent=32", "snapkv:budget=96"}) {
    Tokens expected;
    for (const int saves : {1, 2, 4}) {
      save(saves, method);
      EXPECT_EQ(n_files(), saves == 1 ? 1u : saves + 1u) << "of a session that was saved twice";
      for (const int restores : {1, 2, 4}) {
        const Tokens here = go_on(restores, method);
        ASSERT_THAT(here, SizeIs(kAnswer));
        if (expected.empty()) expected = here;
        EXPECT_EQ(here, expected) << method << ": saved by " << saves << ", restored by " << restores;
      }
      fs::remove_all(folder_);
      fs::create_directory(folder_);
    }
  }
}

TEST_F(SessionRanksTest, PartsThatDoNotBelongTogetherAreRefusedByAllRanks) {
  save(2, "");
  for (const auto& entry : fs::directory_iterator(folder_))
    if (entry.path().string().ends_with("rank1of2")) std::ofstream(entry.path(), std::ios::binary) << "something else";
  for (const int size : {1, 2}) {
    EXPECT_THAT(with_ranks(size, "",
                           [&](RunningModel& model) {
                             EXPECT_THAT(error_message(ErrorKind::kFormat, [&] { restore_sequence(model, path_); }),
                                         HasSubstr("not the part"));
                             model.engine->start({}, turn(10, 7, model));  // the ranks go on
                             EXPECT_THAT(answer(*model.engine), SizeIs(kAnswer));
                           }),
                Each(""));
  }
}

TEST_F(SessionRanksTest, AManifestNamesNoFilesElsewhere) {
  const auto parse = [](std::string text) {
    return error_message(ErrorKind::kFormat, [&] { parse_manifest(std::as_bytes(std::span(text)), "x"); });
  };
  const std::string title = "mneme session of ranks, version 1\n";
  const SessionManifest manifest{.parts = {{.stamp = 1, .file = "a"}, {.stamp = ~std::uint64_t{0}, .file = "b c"}}};
  const std::string text = manifest_text(manifest);
  EXPECT_EQ(parse_manifest(std::as_bytes(std::span(text)), "x").parts, manifest.parts);
  EXPECT_THAT(parse(title), HasSubstr("names no part"));
  EXPECT_THAT(parse(title + "0000000000000001 ../a\n"), HasSubstr("line 2"));
  EXPECT_THAT(parse(title + "0000000000000001 a\n0000000000000001 ..\n"), HasSubstr("line 3"));
  EXPECT_THAT(parse(title + "000000000000000g a\n"), HasSubstr("line 2"));
  EXPECT_THAT(parse(title + "0000000000000001 a"), HasSubstr("line 2"));
  EXPECT_THAT(parse("MNEMESES"), HasSubstr("not a session"));
}

}  // namespace
}  // namespace mneme
