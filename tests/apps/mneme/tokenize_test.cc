// mneme tokenize, as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/mneme/program.h"

namespace mneme::cli_test {
namespace {

using ::testing::HasSubstr;

Outcome tokenize(std::vector<std::string> arguments, const std::string& text) {
  std::vector<std::string> all = {"tokenize", "-m", MNEME_MODEL_FILE};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return mneme(all, {.text = text, .env = {}, .out_path = ""});
}

TEST(Tokenize, ATableByDefault) {
  const Outcome o = tokenize({}, "a \"b\"\n\xFF");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("  \"a\"\n"));
  EXPECT_THAT(o.out, HasSubstr("\\\""));
  EXPECT_THAT(o.out, HasSubstr("\\n"));
  EXPECT_THAT(o.out, HasSubstr("\"\\xff\"\n"));
  EXPECT_EQ(o.err, "");
}

TEST(Tokenize, SpecialTokensAreTextUnlessAsked) {
  EXPECT_GT(tokenize({"--ids"}, "<|end|>").out.size(), 3u);
  EXPECT_EQ(tokenize({"--ids", "--special"}, "<|end|>").out, "1\n");
  EXPECT_EQ(tokenize({"--special"}, "<|end|>").out, "       1  <|end|>\n");
}

TEST(Tokenize, IdsBecomeTheTextAgain) {
  const std::string text = "Wörter,\n\n日本 \xE2\x80 and \x01 too ";
  const Outcome ids = tokenize({"--ids"}, text);
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(tokenize({"--decode"}, ids.out).out, text);
  EXPECT_EQ(tokenize({"--decode"}, "1 2").out, "");
  EXPECT_EQ(tokenize({"--decode", "--special"}, "1, 2").out, "<|end|><|user|>");
}

TEST(Tokenize, NothingGivesNothing) {
  EXPECT_EQ(tokenize({}, "").out, "");
  EXPECT_EQ(tokenize({"--ids"}, "").out, "\n");
  EXPECT_EQ(tokenize({"--decode"}, " \n").out, "");
}

TEST(Tokenize, BadIdsAreNamed) {
  for (const char* bad : {"1 2 x", "1 2 8192", "1 2 -1", "1 2 99999999999999999999", "1 2 3.5"}) {
    const Outcome o = tokenize({"--decode"}, bad);
    EXPECT_EQ(o.code, 2) << bad;
    EXPECT_EQ(o.out, "");
    EXPECT_THAT(o.err, HasSubstr("token 3 of the input: expected an id from 0 to 8191"));
  }
}

TEST(Tokenize, BadFilesAndFullDisksAreErrors) {
  Outcome o = mneme({"tokenize", "-m", "/nowhere/model.gguf"}, {.text = "a", .env = {}, .out_path = ""});
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("/nowhere/model.gguf"));
  o = mneme({"tokenize", "-m", MNEME_MODEL_FILE}, {.text = "a", .env = {}, .out_path = "/dev/full"});
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("standard output"));
  EXPECT_EQ(tokenize({"--decode", "--ids"}, "1").code, 2);
  EXPECT_EQ(mneme({"tokenize"}).code, 2);
}

TEST(Tokenize, TheModelMayComeFromTheEnvironment) {
  const Outcome o =
      mneme({"tokenize", "--ids"}, {.text = "a", .env = {{"MNEME_MODEL", MNEME_MODEL_FILE}}, .out_path = ""});
  EXPECT_EQ(o.code, 0) << o.err;
}

}  // namespace
}  // namespace mneme::cli_test
