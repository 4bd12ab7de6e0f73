#include "src/base/ascii.h"

#include <gtest/gtest.h>

#include <cctype>

namespace mneme {
namespace {

// <cctype> in the "C" locale is the definition; it takes bytes as int and answers by any number but 0.
TEST(Ascii, ClassesAndCaseAreThoseOfTheCLocale) {
  for (unsigned i = 0; i < 256; ++i) {
    const unsigned char byte = i & 255;
    const char c = byte;
    EXPECT_EQ(byte_of(c), i);
    EXPECT_EQ(is_ascii(c), i < 128) << i;
    EXPECT_EQ(is_lower(c), std::islower(i) != 0) << i;
    EXPECT_EQ(is_upper(c), std::isupper(i) != 0) << i;
    EXPECT_EQ(is_digit(c), std::isdigit(i) != 0) << i;
    EXPECT_EQ(is_letter(c), std::isalpha(i) != 0) << i;
    EXPECT_EQ(is_letter_or_digit(c), std::isalnum(i) != 0) << i;
    EXPECT_EQ(is_hex_digit(c), std::isxdigit(i) != 0) << i;
    EXPECT_EQ(byte_of(to_lower(c)), std::tolower(i)) << i;
    EXPECT_EQ(byte_of(to_upper(c)), std::toupper(i)) << i;
  }
}

TEST(Ascii, LettersByTheirNumber) {
  EXPECT_EQ(lower_letter(0), 'a');
  EXPECT_EQ(lower_letter(25), 'z');
  EXPECT_EQ(upper_letter(0), 'A');
  EXPECT_EQ(upper_letter(25), 'Z');
}

TEST(Ascii, OtherCharactersKeepTheirBytes) {
  EXPECT_EQ(ascii_lower("ÄB-ç"), "Äb-ç");
  EXPECT_EQ(trimmed(" \t a b\r\n"), "a b");
  EXPECT_EQ(trimmed(" \n"), "");
}

}  // namespace
}  // namespace mneme
