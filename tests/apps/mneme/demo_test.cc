// The text that ships with the project holds facts, and the model that ships with it finds them, through the public
// API.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "mneme/mneme.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

const std::vector<std::pair<std::string, std::string>> kFacts = {
    {"What is the secret number of copper-lantern?", "70935"},
    {"What is the password for winter-garden?", "velvet-thunder"},
    {"Which number belongs to river-stone?", "5582046"},
    {"Whose house does Sanilo live in?", "Moreli"},
    {"What is the secret number of silver-harbour?", "48213"},
    {"What must one say to open iron-cellar?", "amber-whistle"},
    {"Where does the house of Tepuka stand?", "Lorina"},
    {"What is the secret number of silver-meadow?", "91764"},
    {"What is the special magic number for orange-window mentioned in the text?", "330172"},
    {"What is the password for northern-market?", "paper-kingdom"},
};

std::string demo_text() {
  std::ifstream in(MNEME_DEMO_FILE, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// One session reads the text; every question goes to a fork of it.
void expect_answers(const std::string& document, std::size_t n_facts, std::int64_t fewest, std::int64_t most) {
  const LanguageModel model(MNEME_MODEL_FILE, {.threads = kTestThreads});
  Session book(model);
  book.read({.document = document});
  const std::int64_t length = book.tokens().size();
  EXPECT_GE(length, fewest);
  EXPECT_LE(length, most);
  for (std::size_t i = 0; i < n_facts; ++i) {
    const Answer answer = book.fork().ask({.question = kFacts[i].first}, {.max_tokens = 32});
    EXPECT_EQ(answer.text, kFacts[i].second) << kFacts[i].first;
    EXPECT_EQ(answer.stopped, StopReason::kEnd);
    EXPECT_EQ(answer.stats.shared_tokens, length) << "the document is read once";
  }
}

TEST(Demo, TheModelFindsTheFactsOfItsFirstThird) {
  const std::string text = demo_text();
  expect_answers(text.substr(0, text.find("\nSanilo lives")), 3, 4000, 6500);
}

TEST(Demo, TheModelFindsTheFactsOfTheWholeText) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "minutes to half an hour under sanitizers, and nothing that the shorter text does not run";
#endif
  expect_answers(demo_text(), kFacts.size(), 12'000, 16'000);
}

}  // namespace
}  // namespace mneme
