// Sessions of methods that decide how prompts are read, with the shipped model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "mneme/mneme.h"
#include "tests/engine/session/session_bytes.h"
#include "tests/engine/session/session_files.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

LanguageModel load(const std::string& method, const std::string& overrides = "") {
  EngineOptions options{.context = 2048, .max_batched_tokens = 128, .threads = 1, .pin_threads = false};
  options.kv.method = method;
  if (method != "full") options.kv.budget = 128;
  options.kv.overrides = overrides;
  return LanguageModel(std::string(MNEME_SOURCE_DIR "/models/needle-27m-q8_0.gguf"), options);
}

class SessionReading : public ::testing::TestWithParam<const char*>, protected SessionFiles {
 protected:
  const std::string document_ = long_document();
};

TEST_P(SessionReading, ARestoredSessionAnswersAsTheLiveOne) {
  const LanguageModel model = load(GetParam());
  Session live(model);
  live.read({.document = document_});
  const GenerationOptions long_answer{.max_tokens = 12, .ignore_end = true};
  for (const char* question : {"What is the secret number of silver-harbour?", "What did the old man light?",
                               "What is the secret number of silver-harbour?"}) {
    for (const QuestionPath path : {QuestionPath::kPrefill, QuestionPath::kDecode}) {
      live.save(path_);
      Session restored = Session::restore(model, path_), fork = restored.fork();
      EXPECT_EQ(restored.tokens(), live.tokens());
      const AskOptions how{.question = path};
      const Answer a = live.ask({.question = question}, long_answer, how),
                   b = restored.ask({.question = question}, long_answer, how);
      EXPECT_EQ(a.tokens, b.tokens) << question;
      EXPECT_EQ(b.stats.prompt_tokens, a.stats.prompt_tokens);
      EXPECT_LT(b.stats.prompt_tokens, 40) << "nothing is computed again";
      EXPECT_EQ(fork.ask({.question = question}, long_answer, how).tokens, a.tokens);
    }
  }
}

TEST_P(SessionReading, OtherMethodsAreRefused) {
  const LanguageModel model = load(GetParam()), full = load("full"), other = load(GetParam(), "budget=160");
  Session live(model);
  live.ask({.document = document_, .question = "What did the old man light?"});
  live.save(path_);
  for (const LanguageModel* m : {&full, &other})
    EXPECT_THAT(error_message(ErrorKind::kRequest, [&] { Session::restore(*m, path_); }),
                HasSubstr("start it with the same"));
  Session exact(full);
  exact.ask({.document = document_, .question = "What did the old man light?"});
  exact.save(path_);
  EXPECT_THAT(error_message(ErrorKind::kRequest, [&] { Session::restore(model, path_); }), HasSubstr("read exactly"));
}

// Damage with right checksums, in the state of the method.
TEST_P(SessionReading, ALieAboutItsStateIsRefused) {
  const LanguageModel model = load(GetParam());
  Session live(model);
  live.ask({.document = document_, .question = "What did the old man light?"});
  live.save(path_);
  std::vector<char> text;
  {
    std::ifstream in(path_, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  text.resize(text.size() - 1);  // the state is the last of the file
  const std::span bytes = std::as_writable_bytes(std::span(text));
  SessionLayout::Entry entry;
  std::byte* const at = bytes.data() + SessionLayout::kEntries + SessionLayout::kReading * sizeof(entry);
  std::memcpy(&entry, at, sizeof(entry));
  --entry.bytes;
  std::memcpy(at, &entry, sizeof(entry));
  const std::uint64_t size = bytes.size();
  std::memcpy(bytes.data() + 16, &size, sizeof(size));
  reseal(bytes);
  std::ofstream(path_, std::ios::binary).write(text.data(), text.size());
  EXPECT_NE(error_message(ErrorKind::kFormat, [&] { Session::restore(model, path_); }), "");
}

INSTANTIATE_TEST_SUITE_P(Methods, SessionReading, ::testing::Values("actqkv", "streaming_llm"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace mneme
