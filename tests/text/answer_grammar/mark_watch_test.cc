// Marks are found where AnswerParser finds them, however white space in them is written.
#include "src/text/answer_grammar/mark_watch.h"

#include <gtest/gtest.h>

#include <random>

#include "src/text/answer/mark.h"

namespace mneme {
namespace {

// The mark that ends first in the text, and where; of two at one place the first.
std::pair<std::int32_t, std::size_t> first_by_parser(const std::vector<std::string>& marks, std::string_view text) {
  std::pair<std::int32_t, std::size_t> best{-1, text.size() + 1};
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (std::int32_t mark = 0; mark < std::ssize(marks); ++mark) {
      if (is_white(text[at])) continue;
      const MarkMatch match = match_mark(marks[mark], text.substr(at), true);
      if (match.found != Found::kWhole) continue;
      const std::size_t end = at + match.length;
      if (end < best.second || (end == best.second && mark < best.first)) best = {mark, end};
    }
  }
  return best;
}

std::pair<std::int32_t, std::size_t> first_by_watch(const MarkWatch& watch, std::string_view text) {
  std::int32_t state = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const MarkWatch::Step step = watch.step(state, static_cast<std::uint8_t>(text[at]));
    if (step.mark >= 0) return {step.mark, at + 1};
    state = step.state;
  }
  return {-1, text.size() + 1};
}

TEST(MarkWatch, FindsTheFirstMark) {
  std::mt19937 random(3);
  const auto pick = [&](std::string_view letters, std::size_t most) {
    std::string text;
    for (std::size_t n = 1 + random() % most; n > 0; --n) text += letters[random() % letters.size()];
    return text;
  };
  int found = 0;
  for (int n = 0; n < 3000; ++n) {
    std::vector<std::string> marks;
    while (marks.size() < 1 + random() % 3) {
      std::string mark = std::string(trimmed(pick("aab <", 5)));
      if (!mark.empty()) marks.push_back(std::move(mark));
    }
    const std::string text = pick("aab < \n", 14);
    SCOPED_TRACE(testing::PrintToString(marks) + " in " + testing::PrintToString(text));
    const auto expected = first_by_parser(marks, text);
    EXPECT_EQ(first_by_watch(MarkWatch(marks), text), expected);
    found += expected.first >= 0 ? 1 : 0;
  }
  EXPECT_GT(found, 1000);
}

TEST(MarkWatch, HoldsTheLongestBeginning) {
  const MarkWatch watch({"<call>", "<c d"});
  std::int32_t state = 0;
  const auto held = [&](std::string_view text) {
    for (const char c : text) state = watch.step(state, static_cast<std::uint8_t>(c)).state;
    return watch.held(state);
  };
  EXPECT_EQ(held("x<ca"), 3);
  EXPECT_EQ(held("<c"), 2);
  EXPECT_EQ(held("  "), 2) << "white space within a mark";
  EXPECT_EQ(held("x"), 0);
  EXPECT_EQ(watch.length(1), 3);
}

}  // namespace
}  // namespace mneme
