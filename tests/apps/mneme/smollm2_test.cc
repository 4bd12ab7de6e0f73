// The model that tools/get_model fetches (SmolLM2-135M-Instruct in Q4_1): it chats, and finds a sentence in a novel, in
// the library and over HTTP. Skipped where the file is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "mneme/mneme.h"
#include "tests/apps/mneme/program.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::string kSentence = "The secret password of the lighthouse is velvet thunder.";
const std::string kQuestion = "What is the secret password of the lighthouse?";
const std::string kPassword = "velvet thunder";

std::string model_file() {
  const char* named = std::getenv("MNEME_SMOLLM2");
  return named != nullptr ? named : MNEME_SOURCE_DIR "/models/smollm2-135m-instruct-q4_1.gguf";
}

// About `bytes` of a text, from its chapter on, with the sentence in the middle; empty where the file is missing.
std::string with_sentence(const std::string& file, std::string_view chapter, std::size_t bytes) {
  std::ifstream in(file, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  if (all.empty()) return all;
  const std::size_t begin = all.find(chapter), middle = all.find(". ", begin + bytes / 2) + 2;
  return all.substr(begin, middle - begin) + kSentence + " " +
         all.substr(middle, all.find(". ", begin + bytes) + 1 - middle);
}

class Smollm2 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(model_file()))
      GTEST_SKIP() << model_file() << " is missing: tools/get_model smollm2 fetches it (MNEME_SMOLLM2 names another)";
  }
};

TEST_F(Smollm2, IsReadAsQ4_1WithItsChatFormat) {
  const ModelFile file(model_file());
  EXPECT_EQ(file.info().architecture, "llama");
  EXPECT_EQ(file.info().chat_family, "chatml");
  EXPECT_EQ(file.info().context, 8192);
  EXPECT_EQ(file.info().layers, 30);
}

TEST_F(Smollm2, ChatsOverTwoTurns) {
  const LanguageModel model(model_file(), {.context = 1024, .threads = kTestThreads});
  Session session(model);
  const Answer first = session.ask({.question = "What is the capital of France?"}, {.max_tokens = 40});
  EXPECT_EQ(first.text, "The capital of France is Paris.") << "README.md quotes it";
  EXPECT_EQ(first.stopped, StopReason::kEnd);
  const Answer second = session.ask({.question = "And of Italy?"}, {.max_tokens = 40});
  EXPECT_THAT(second.text, HasSubstr("Rome"));
}

TEST_F(Smollm2, FindsASentenceInANovelWithAnyNumberOfThreads) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "minutes under sanitizers";
#endif
  const std::string document =
      with_sentence(MNEME_SOURCE_DIR "/../shared/data/prose/almayers-folly-1895.txt", "CHAPTER I.", 24'000);
  if (document.empty()) GTEST_SKIP() << "the novel is missing";
  std::string answers[2];
  for (const int threads : {1, 2}) {
    const LanguageModel model(model_file(), {.context = 8192, .threads = threads});
    Session session(model);
    const Answer answer = session.ask({.document = document, .question = kQuestion}, {.max_tokens = 32});
    EXPECT_GE(answer.stats.prompt_tokens, 5500);
    EXPECT_LE(answer.stats.prompt_tokens, 6500);
    EXPECT_THAT(answer.text, HasSubstr(kPassword));
    answers[threads - 1] = answer.text;
  }
  EXPECT_EQ(answers[0], answers[1]);
}

TEST_F(Smollm2, AnswersOverHttpWhatTheLibraryAnswers) {
  // Of the repository, so that every clone asks the same: the model finds the sentence in 3,000 bytes, not alone.
  const std::string text = with_sentence(MNEME_SOURCE_DIR "/demo/harbour.txt", "", 3'000) + "\n\n\n" + kQuestion;
  cli_test::Running server({MNEME_BINARY, "serve", "-m", model_file(), "--port", "0", "--quiet", "--no-pin", "-c",
                            "2048", "--threads", std::to_string(kTestThreads)});
  ASSERT_TRUE(server.wait_for_output(30));
  const std::string line = server.output();
  const std::string port = line.substr(line.rfind(':') + 1, line.find('\n') - line.rfind(':') - 1);
  const cli_test::TempFolder folder;
  const Json request = {{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 32}, {"temperature", 0}};
  const std::string body = folder.write("request.json", request.dump());
  const auto outcome =
      cli_test::run_program({"/bin/bash", "-c",
                             "curl -sS --fail-with-body --max-time 240 http://localhost:" + port +
                                 "/v1/chat/completions -H 'Content-Type: application/json' -d @" + body});
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const auto answer = Json::parse(outcome.out)["choices"][0]["message"]["content"].get<std::string>();
  EXPECT_THAT(answer, HasSubstr(kPassword));
  ::kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait().code, 0);

  const LanguageModel model(model_file(), {.context = 2048, .threads = kTestThreads});
  Session session(model);
  EXPECT_EQ(answer, session.ask({.question = text}, {.max_tokens = 32}).text);
}

}  // namespace
}  // namespace mneme
