#include "src/cli/options.h"

#include <gtest/gtest.h>

#include <limits>

namespace mneme::cli {
namespace {

std::string refusal(const CLI::Validator& validator, std::string text) {
  return validator(text);
}

TEST(Options, WholeNumbers) {
  const auto v = whole_number(-2, 10);
  for (const char* good : {"0", "-2", "10"}) EXPECT_EQ(refusal(v, good), "") << good;
  for (const char* bad : {"", " 1", "1 ", "1.0", "0x1", "11", "-3", "one", "99999999999999999999"})
    EXPECT_NE(refusal(v, bad), "") << bad;
  EXPECT_EQ(refusal(v, "11"), "expected a whole number from -2 to 10, found \"11\"");
}

TEST(Options, Numbers) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const char* good : {"0", "1", "0.5", "1e-3", ".25"}) EXPECT_EQ(refusal(number(0, 1), good), "") << good;
  for (const char* bad : {"", "-0.1", "1.01", "nan", "inf", "1,5", "0.5x"})
    EXPECT_NE(refusal(number(0, 1), bad), "") << bad;
  EXPECT_EQ(refusal(number(0, kInf), "-1"), "expected a number, 0 or more, found \"-1\"");
  EXPECT_EQ(refusal(number(-kInf, kInf), "x"), "expected a number, found \"x\"");
}

TEST(Options, Words) {
  EXPECT_EQ(refusal(one_of({"bf16", "f16"}), "f16"), "");
  EXPECT_EQ(refusal(one_of({"bf16", "f16"}), "F16"), "expected bf16 or f16, found \"F16\"");
  EXPECT_NE(refusal(not_empty(), ""), "");
  EXPECT_EQ(refusal(not_empty(), "x"), "");
}

TEST(Options, EnvironmentNamesComeFromTheFirstLongName) {
  CLI::App app;
  bool flag = false;
  CLI::App* sub = app.add_subcommand("sub");
  sub->add_flag("-c,--max-model-len,--ctx-size", flag);
  sub->add_flag("-x", flag);
  name_environment(app);
  EXPECT_EQ(sub->get_option("--max-model-len")->get_envname(), "MNEME_MAX_MODEL_LEN");
  EXPECT_EQ(sub->get_option("-x")->get_envname(), "");
  EXPECT_EQ(sub->get_option("--help")->get_envname(), "");
}

}  // namespace
}  // namespace mneme::cli
