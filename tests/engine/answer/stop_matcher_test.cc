#include "src/engine/answer/stop_matcher.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/base/rng.h"

namespace mneme {
namespace {

using Pieces = std::vector<std::string>;

// All that comes out when the pieces go in.
std::string through(StopMatcher& matcher, const Pieces& pieces) {
  std::string out;
  for (const std::string& piece : pieces) out += matcher.push(piece);
  return out + matcher.finish();
}

std::string through(const Pieces& stop, const Pieces& pieces) {
  StopMatcher matcher(stop);
  return through(matcher, pieces);
}

TEST(StopMatcher, WithoutStringsEverythingPassesAtOnce) {
  StopMatcher matcher({"", ""});
  EXPECT_EQ(matcher.push("abc"), "abc");
  EXPECT_EQ(matcher.push(""), "");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, EndsBeforeTheString) {
  StopMatcher matcher({"\nUser:"});
  EXPECT_EQ(matcher.push("yes\nUs"), "yes") << "what may be its beginning waits";
  EXPECT_FALSE(matcher.matched());
  EXPECT_EQ(matcher.push("er: more"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.push("and more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, GivesOutWhatWaitedInVain) {
  StopMatcher matcher({"\nUser:"});
  EXPECT_EQ(matcher.push("a\nUs"), "a");
  EXPECT_EQ(matcher.push("ual"), "\nUsual");
  EXPECT_EQ(matcher.push("\nUser"), "");
  EXPECT_EQ(matcher.finish(), "\nUser");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, TheFirstBeginningWins) {
  EXPECT_EQ(through({"abcd", "c"}, {"xabc", "d"}), "x");
  EXPECT_EQ(through({"abcd", "c"}, {"xabc", "e"}), "xab");
  EXPECT_EQ(through({"abcd", "c"}, {"xabc"}), "xab") << "at the end nothing more can come";
  EXPECT_EQ(through({"b", "ab"}, {"xaab"}), "xa");
}

TEST(StopMatcher, OfStringsAtOnePlaceTheShortestIsKeptHoweverTheTextIsCut) {
  for (const Pieces& pieces : {Pieces{"xabcy"}, Pieces{"xa", "b", "cy"}, Pieces{"xab", "cy"}}) {
    StopMatcher matcher({"abc", "ab"}, true);
    EXPECT_EQ(through(matcher, pieces), "xab");
  }
}

TEST(StopMatcher, RepeatingBeginnings) {
  EXPECT_EQ(through({"aab"}, {"a", "a", "a", "b", "c"}), "a");
  EXPECT_EQ(through({"abab!"}, {"ab", "ab", "ab!", "x"}), "ab");
}

// However a text is cut into pieces, what comes out is the text before the first match.
TEST(StopMatcher, PiecesDoNotMatter) {
  Rng rng(11);
  for (int round = 0; round < 3000; ++round) {
    Pieces stop, pieces;
    for (std::uint64_t i = rng.below(4); i > 0; --i) {
      std::string s;
      for (std::uint64_t n = rng.below(5); n > 0; --n) s += static_cast<char>('a' + rng.below(2));
      stop.push_back(s);
    }
    std::string text;
    for (std::uint64_t i = rng.below(8); i > 0; --i) {
      std::string s;
      for (std::uint64_t n = rng.below(5); n > 0; --n) s += static_cast<char>('a' + rng.below(3));
      text += s;
      pieces.push_back(s);
    }
    std::size_t first = std::string::npos;
    for (const std::string& s : stop)
      if (!s.empty()) first = std::min(first, text.find(s));
    StopMatcher matcher(stop);
    ASSERT_EQ(through(matcher, pieces), text.substr(0, first)) << text;
    ASSERT_EQ(matcher.matched(), first != std::string::npos) << text;
    // With the string that ended it: of several at one place the shortest.
    std::size_t size = std::string::npos;
    for (const std::string& s : stop)
      if (!s.empty() && first != std::string::npos && text.compare(first, s.size(), s) == 0)
        size = std::min(size, s.size());
    StopMatcher keeps(stop, true);
    ASSERT_EQ(through(keeps, pieces), first == std::string::npos ? text : text.substr(0, first + size)) << text;
  }
}

}  // namespace
}  // namespace mneme
