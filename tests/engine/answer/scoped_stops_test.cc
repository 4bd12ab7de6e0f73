// Stop strings end the text of an answer wherever it is cut, and nothing in its thoughts and calls.
#include "src/engine/answer/scoped_stops.h"

#include <gtest/gtest.h>

#include <random>

namespace mneme {
namespace {

std::shared_ptr<const AnswerScope> scope() {
  auto scope = std::make_shared<AnswerScope>();
  scope->marks = std::make_shared<const AnswerMarks>(*known_answer_format("hermes"));
  scope->has_tools = true;
  scope->tools["f"] = {};
  return scope;
}

struct Given {
  std::string text;
  bool stopped = false;
  bool operator==(const Given&) const = default;
};

Given given(const std::string& answer, const std::vector<std::string>& stop, bool keep, std::mt19937* random) {
  ScopedStops stops(stop, keep, scope());
  Given out;
  for (std::size_t at = 0; at < answer.size() && !stops.matched();) {
    const std::size_t n = random == nullptr ? answer.size() : 1 + (*random)() % 5;
    out.text += stops.push(answer.substr(at, n));
    at += n;
  }
  out.text += stops.finish();
  out.stopped = stops.matched();
  return out;
}

const std::string kCall = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"stop\"}}</tool_call>";

TEST(ScopedStops, EndTheTextAlone) {
  const std::string thought = "<think>\nstop\n</think>\n\n";
  EXPECT_EQ(given(thought + "a stop b", {"stop"}, false, nullptr), (Given{thought + "a ", true}));
  EXPECT_EQ(given(thought + "a stop b", {"stop"}, true, nullptr), (Given{thought + "a stop", true}));
  EXPECT_EQ(given(thought + kCall, {"stop", "\n"}, false, nullptr), (Given{thought + kCall, false}));
  EXPECT_EQ(given("st" + kCall + "op", {"stop"}, false, nullptr), (Given{"st" + kCall + "op", false}))
      << "a call is between the halves";
  EXPECT_EQ(given("stop", {"stop"}, false, nullptr), (Given{"", true}));
  EXPECT_EQ(given("a\n", {"\n"}, false, nullptr), (Given{"a", true})) << "white space at the end";
  EXPECT_EQ(given("a", {""}, false, nullptr), (Given{"a", false}));
}

TEST(ScopedStops, GiveTheSameHoweverTheAnswerIsCut) {
  std::mt19937 random(5);
  const std::vector<std::string> pieces = {"stop",    "st",       "op",    " ",   "\n", "a",
                                           "<think>", "</think>", "<tool", kCall, "é"};
  int stopped = 0;
  for (int n = 0; n < 2000; ++n) {
    std::string answer;
    for (std::size_t k = 1 + random() % 8; k > 0; --k) answer += pieces[random() % pieces.size()];
    const bool keep = random() % 2 == 0;
    const std::vector<std::string> stop = {"stop", "o\n", "p a"};
    const Given whole = given(answer, stop, keep, nullptr);
    EXPECT_EQ(given(answer, stop, keep, &random), whole) << answer;
    EXPECT_TRUE(answer.starts_with(whole.text)) << answer;
    if (!whole.stopped) {
      EXPECT_EQ(whole.text, answer);
    } else if (!keep) {
      EXPECT_LT(whole.text.size(), answer.size());
    }
    stopped += whole.stopped ? 1 : 0;
  }
  EXPECT_GT(stopped, 300);
}

}  // namespace
}  // namespace mneme
