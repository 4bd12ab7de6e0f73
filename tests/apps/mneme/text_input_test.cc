#include "apps/mneme/text_input.h"

#include <gtest/gtest.h>

#include <string>

#include "mneme/error.h"

namespace mneme::cli {
namespace {

std::string refusal(const std::string& text) {
  try {
    expect_text("here", text);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kRequest);
    return e.what();
  }
  return "";
}

TEST(ExpectText, TakesTextInAnyLanguage) {
  for (const char* good : {"", "plain", "caf\u00e9", "\u6e2f\u53e3", "\U0001f6a2 ship", "tab\t, line\n"})
    EXPECT_EQ(refusal(good), "") << good;
}

TEST(ExpectText, SaysWhereItIsNone) {
  EXPECT_NE(refusal("caf\xe9").find("here: expected UTF-8 text, found byte 0xe9 at offset 3"), std::string::npos);
  EXPECT_NE(refusal(std::string("a\0\xff", 3)).find("zero byte at offset 1"), std::string::npos);
  EXPECT_NE(refusal(std::string("a\xff\0", 3)).find("0xff at offset 1"), std::string::npos);
  EXPECT_NE(refusal("\xc0\x80"), "") << "overlong";
  EXPECT_NE(refusal("\xf5\x80\x80\x80"), "") << "past the last character";
}

}  // namespace
}  // namespace mneme::cli
