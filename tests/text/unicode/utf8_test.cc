#include "src/text/unicode/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace mneme::test {
namespace {

TEST(Utf8, WellFormed) {
  for (const std::string s :
       {"", "plain ascii text of more than eight bytes", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
        "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "grün ▁ 漢字 😀"})
    EXPECT_EQ(find_invalid_utf8(s), kValidUtf8) << s;
  EXPECT_EQ(find_invalid_utf8(std::string("\0a", 2)), kValidUtf8);
}

TEST(Utf8, IllFormedIsFoundWhereItIs) {
  for (const std::string s : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2 ", "\xe0\x9f\xbf", "\xe0\xa0",
                              "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf0\x90\x80", "\xf4\x90\x80\x80",
                              "\xf5\x80\x80\x80", "\xfe", "\xff", "\xe2\x82 "}) {
    for (const std::string before : {"", "x", "eight ab", "eight abc", "seven b", "ü"})
      EXPECT_EQ(find_invalid_utf8(before + s + " and more"), before.size());
  }
}

TEST(Utf8, PrefixNeverCutsACharacter) {
  EXPECT_EQ(utf8_prefix("abc", 3), "abc");
  EXPECT_EQ(utf8_prefix("abc", 2), "ab");
  EXPECT_EQ(utf8_prefix("aü", 2), "a");
  EXPECT_EQ(utf8_prefix("😀b", 3), "");
  EXPECT_EQ(utf8_prefix("😀b", 4), "😀");
}

}  // namespace
}  // namespace mneme::test
