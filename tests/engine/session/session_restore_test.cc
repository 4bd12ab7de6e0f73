// Sessions that are saved and restored, with the shipped model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "mneme/mneme.h"
#include "tests/engine/session/session_files.h"
#include "tests/engine/session/session_fixture.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

class SessionRestoreTest : public ::testing::Test, protected SessionFiles {
 protected:
  static LanguageModel& model() {
    static LanguageModel model(
        kModel, {.context = 1024, .max_batched_tokens = 64, .threads = kTestThreads, .pin_threads = false});
    return model;
  }
  std::ptrdiff_t n_files() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }
};

TEST_F(SessionRestoreTest, AnswersAsTheLiveOneAndRecomputesNothing) {
  Session live(model());
  live.ask({.document = kDocument, .question = kAboutHarbour});
  live.save(path_);
  Session restored = Session::restore(model(), path_);
  EXPECT_EQ(restored.tokens(), live.tokens());
  const Answer a = live.ask({.question = kAboutLantern}), b = restored.ask({.question = kAboutLantern});
  EXPECT_EQ(a.text, "70935");
  EXPECT_EQ(b.tokens, a.tokens);
  EXPECT_EQ(b.stats.prompt_tokens, a.stats.prompt_tokens);
  EXPECT_LT(b.stats.prompt_tokens, 40);
  EXPECT_EQ(restored.tokens(), live.tokens());
}

// Warm enough that answers differ from draw to draw, long enough that they show it.
TEST_F(SessionRestoreTest, SamplesAsTheLiveOne) {
  GenerationOptions warm{.max_tokens = 40, .ignore_end = true};
  warm.sampling.temperature = 3.0f;
  Session live(model());
  warm.sampling.seed = 7;
  const Answer first = live.ask({.document = kDocument, .question = kAboutHarbour}, warm);
  live.save(path_);
  std::vector<std::vector<std::int32_t>> answers;
  for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>(11), std::optional<std::uint64_t>()}) {
    warm.sampling.seed = seed;
    Session again = Session::restore(model(), path_), restored = Session::restore(model(), path_);
    const Answer a = again.ask({.question = kAboutLantern}, warm);
    EXPECT_EQ(restored.ask({.question = kAboutLantern}, warm).tokens, a.tokens);
    answers.push_back(a.tokens);
  }
  EXPECT_NE(answers[0], answers[1]);
  // Without a seed: the random numbers that the live one has next.
  EXPECT_EQ(live.ask({.question = kAboutLantern}, warm).tokens, answers[1]);
  warm.sampling.seed = 7;
  EXPECT_NE(Session::restore(model(), path_).ask({.question = kAboutLantern}, warm).tokens, answers[1])
      << "the seed's numbers from the first one";
  EXPECT_EQ(first.tokens.size(), 40u);
}

TEST_F(SessionRestoreTest, ADocumentThatWaitsForItsQuestionWaitsOn) {
  {
    Session reader(model());
    reader.read({.document = kDocument, .question = "", .system = "Answer with the number."});
    reader.save(path_);
  }
  const SavedSession info = saved_session(path_);
  EXPECT_TRUE(info.document_waits);
  EXPECT_EQ(info.computed_tokens, info.tokens);
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.kv_cache_dtype, KvDtype::kBf16);
  Session restored = Session::restore(model(), path_);
  const Answer answer = restored.ask({.question = kAboutHarbour});
  EXPECT_EQ(answer.text, "48213");
  EXPECT_LT(answer.stats.prompt_tokens, 40);
}

TEST_F(SessionRestoreTest, AnAnswerThatWasEndedIsSavedAsItStands) {
  Session live(model());
  AskCallbacks callbacks;
  int pieces = 0;
  callbacks.on_text = [&](std::string_view) { return ++pieces < 2; };
  live.ask({.document = kDocument, .question = kAboutHarbour}, {}, {}, callbacks);
  live.save(path_);
  Session restored = Session::restore(model(), path_);
  EXPECT_EQ(restored.ask({.question = kAboutLantern}).tokens, live.ask({.question = kAboutLantern}).tokens);
  EXPECT_EQ(restored.tokens(), live.tokens());
}

// Restored where another session holds nearly all memory: that one computes its keys and values again.
TEST_F(SessionRestoreTest, OthersMakeRoomAndLoseNothing) {
  LanguageModel small(kModel, {.context = 224, .max_sequences = 1, .threads = kTestThreads, .pin_threads = false});
  Session live(small);
  live.ask({.document = kDocument, .question = kAboutHarbour}, {.max_tokens = 16});
  live.save(path_);
  Session second = Session::restore(small, path_), third = Session::restore(small, path_);
  for (Session* s : {&live, &second, &third})
    EXPECT_EQ(s->ask({.question = kAboutLantern}, {.max_tokens = 16}).text, "70935");
  LanguageModel smaller(kModel, {.context = 64, .threads = 1, .pin_threads = false});
  EXPECT_THAT(error_message(ErrorKind::kRequest, [&] { Session::restore(smaller, path_); }),
              HasSubstr("the context has 64"));
}

TEST_F(SessionRestoreTest, WhatDoesNotFitIsRefusedAndHarmsNothing) {
  Session live(model());
  EXPECT_THAT(error_message(ErrorKind::kRequest, [&] { live.save(path_); }), HasSubstr("nothing to save"));
  live.ask({.document = kDocument, .question = kAboutHarbour});
  live.save(path_);
  LanguageModel f16(kModel, {.kv_cache_dtype = KvDtype::kF16, .context = 512, .threads = 1, .pin_threads = false});
  EXPECT_THAT(error_message(ErrorKind::kRequest, [&] { Session::restore(f16, path_); }),
              HasSubstr("keys and values in bf16; this model"));
  EXPECT_NE(error_message(ErrorKind::kFile, [&] { Session::restore(model(), folder_ / "none"); }), "");
  EXPECT_NE(error_message(ErrorKind::kFile, [&] { Session::restore(model(), folder_); }), "");
  EXPECT_THAT(error_message(ErrorKind::kFormat, [&] { Session::restore(model(), kModel); }),
              HasSubstr("saved session"));

  const auto size = std::filesystem::file_size(path_);
  for (const double where : {0.001, 0.01, 0.5, 0.999999}) {
    const auto damaged = folder_ / "damaged";
    std::filesystem::copy_file(path_, damaged, std::filesystem::copy_options::overwrite_existing);
    std::fstream file(damaged, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(where * static_cast<double>(size));
    file.seekg(at);
    const int old = file.get();
    file.seekp(at);
    file.put(static_cast<char>(old ^ 1));
    file.close();
    EXPECT_NE(error_message(ErrorKind::kFormat, [&] { Session::restore(model(), damaged); }), "") << where;
    std::filesystem::resize_file(damaged, static_cast<std::uintmax_t>(at));
    EXPECT_NE(error_message(ErrorKind::kFormat, [&] { Session::restore(model(), damaged); }), "") << where;
  }
  EXPECT_EQ(live.ask({.question = kAboutLantern}).text, "70935");
}

TEST_F(SessionRestoreTest, AFullDiskLeavesTheOldFile) {
  Session live(model());
  live.ask({.document = kDocument, .question = kAboutHarbour});
  live.save(path_);
  const auto before = Session::restore(model(), path_).tokens();
  live.ask({.question = kAboutLantern});

  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit tight{.rlim_cur = 100'000, .rlim_max = old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string words = error_message(ErrorKind::kFile, [&] { live.save(path_); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(words, HasSubstr("writing failed"));
  EXPECT_EQ(n_files(), 1) << "nothing is left of the new one";
  EXPECT_EQ(Session::restore(model(), path_).tokens(), before);
  live.save(path_);
  EXPECT_EQ(Session::restore(model(), path_).tokens(), live.tokens());
}

}  // namespace
}  // namespace mneme
