// Sessions of methods that drop tokens, with the shipped model: what was dropped is not in the file, and stays dropped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "mneme/mneme.h"
#include "tests/engine/session/session_files.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* method;
  int budget;
  const char* overrides;
};

class SessionDrop : public ::testing::TestWithParam<Case>, protected SessionFiles {
 protected:
  // Loaded once for all tests.
  static const LanguageModel& model(const Case& c) {
    static std::map<std::string, LanguageModel> models;
    const auto known = models.find(c.method);
    if (known != models.end()) return known->second;
    EngineOptions options{.context = 2048, .max_batched_tokens = 128, .threads = 1, .pin_threads = false};
    options.kv.method = c.method;
    options.kv.budget = c.budget;
    options.kv.overrides = c.overrides;
    return models
        .emplace(c.method, LanguageModel(std::string(MNEME_SOURCE_DIR "/models/needle-27m-q8_0.gguf"), options))
        .first->second;
  }

  const std::string document_ = long_document();
};

TEST_P(SessionDrop, ARestoredSessionAnswersAsTheLiveOne) {
  const LanguageModel& dropping = model(GetParam());
  const LanguageModel& full = model({"full", 64, ""});
  const Turn first{.document = document_, .question = "What is the secret number of silver-harbour?"};
  Session whole(full), live(dropping);
  const Answer all = whole.ask(first);
  EXPECT_EQ(all.text, "48213");
  const Answer one = live.ask(first);
  EXPECT_GT(one.stats.method.dropped_tokens, 0);
  EXPECT_LT(one.stats.kv_bytes, all.stats.kv_bytes);
  ASSERT_EQ(one.stats.method.layers.size(), 8u);
  EXPECT_LT(one.stats.method.layers[7].kept_share, 1.0);
  const std::filesystem::path whole_path = folder_ / "whole.session";
  whole.save(whole_path);
  live.save(path_);
  EXPECT_LT(std::filesystem::file_size(path_), std::filesystem::file_size(whole_path));

  Session restored = Session::restore(dropping, path_);
  EXPECT_EQ(restored.tokens(), live.tokens());
  for (const char* question : {"What did the old man light?", "What is the secret number of silver-harbour?"}) {
    for (const QuestionPath path : {QuestionPath::kPrefill, QuestionPath::kDecode}) {
      const GenerationOptions long_answer{.max_tokens = 12, .ignore_end = true};
      const AskOptions how{.question = path};
      const Answer a = live.ask({.question = question}, long_answer, how),
                   b = restored.ask({.question = question}, long_answer, how);
      EXPECT_EQ(a.tokens, b.tokens) << question;
      EXPECT_EQ(a.stats.kv_bytes, b.stats.kv_bytes);
    }
  }
}

TEST_P(SessionDrop, OthersGoOnWithWhatIsLeftOrSayWhyNot) {
  {
    const LanguageModel& dropping = model(GetParam());
    Session live(dropping);
    live.ask({.document = document_, .question = "What is the secret number of silver-harbour?"});
    live.save(path_);
  }
  const LanguageModel &full = model({"full", 64, ""}), &oracle = model({"oracle", 256, ""});
  Session whole = Session::restore(full, path_);
  EXPECT_FALSE(whole.ask({.question = "What did the old man light?"}).tokens.empty());
  try {
    Session::restore(oracle, path_);
    ADD_FAILURE() << "oracle selects among all tokens";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kRequest);
    EXPECT_THAT(e.what(), HasSubstr("dropped by a KV method"));
  }
}

// Read first, asked afterwards: dropped at the end of the document, before anybody knows the question.
TEST_P(SessionDrop, ADocumentThatWaitsIsSavedAsItIs) {
  const LanguageModel& dropping = model(GetParam());
  Session live(dropping);
  live.read({.document = document_});
  live.save(path_);
  Session restored = Session::restore(dropping, path_);
  const GenerationOptions long_answer{.max_tokens = 12, .ignore_end = true};
  const Turn question{.question = "What is the secret number of silver-harbour?"};
  EXPECT_EQ(live.ask(question, long_answer).tokens, restored.ask(question, long_answer).tokens);
}

INSTANTIATE_TEST_SUITE_P(Methods, SessionDrop,
                         ::testing::Values(Case{"refreekv", 64, "loss=0.1"}, Case{"snapkv", 128, ""},
                                           Case{"h2o", 128, ""}, Case{"tova", 128, ""}),
                         [](const auto& test) { return std::string(test.param.method); });

}  // namespace
}  // namespace mneme
