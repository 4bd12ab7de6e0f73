#include "src/text/grammar/pattern.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>

#include "mneme/error.h"

namespace mneme {
namespace {

bool matches(const Pattern& p, const std::string& text) {
  Pattern::States s = p.begin();
  for (const char c : text) s = p.step(s, c);
  return p.accepts(s);
}

// JSON Schema refers to ECMAScript's regular expressions.
TEST(Pattern, MatchesWhatRegularExpressionsMatch) {
  std::mt19937 random(7);
  const std::string letters = "ab019-_. z\n";
  for (const char* text : {"^a+b*$",
                           "a",
                           "^(ab|a)*0?$",
                           "^[a-b]{2,4}$",
                           "^\\d{3}-\\d{2}$",
                           "b$",
                           "^a",
                           "^[^ab]+$",
                           "\\w\\.\\w",
                           "^(a|b0)(1|9)?$",
                           "^$",
                           "^(?:a{2}|b{0,2})0{2,}$",
                           "^.a.$",
                           "\\S\\s\\S",
                           "^a?b?0?1?$",
                           "^(a*b)+$",
                           "^a|b$",
                           "[-_]",
                           "^[\\d-]+$",
                           "^a{0,1}b$",
                           "(a|)b"}) {
    const Pattern pattern(text);
    const std::regex expected(text, std::regex::ECMAScript);
    for (int n = 0; n < 3000; ++n) {
      std::string s;
      for (auto k = random() % 8; k > 0; --k) s += letters[random() % letters.size()];
      EXPECT_EQ(matches(pattern, s), std::regex_search(s, expected)) << text << " on \"" << s << "\"";
    }
  }
}

TEST(Pattern, EveryStateLeadsToAnEnd) {
  const Pattern p("^(ab|cd){2}e?$");
  EXPECT_EQ(p.step(p.begin(), 'x'), 0u);
  EXPECT_NE(p.step(p.begin(), 'a'), 0u);
  EXPECT_EQ(p.step(p.step(p.begin(), 'a'), 'd'), 0u);
}

TEST(Pattern, WhatIsNotSupportedIsNamed) {
  for (const char* text :
       {"(?=a)", "(?!a)", "(?<n>a)", "\\1",    "\\bword", "a**", "a+?",    "é",          "[]",  "[z-a]",
        "(a",    "a)",    "a{3",     "a{2,1}", "a{100}",  "a$b", "\\p{L}", "(a{60}){2}", "[é]", "*"}) {
    try {
      const Pattern p{std::string_view(text)};
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUnsupported) << text;
    }
  }
}

}  // namespace
}  // namespace mneme
