#include "apps/mneme/options.h"
#include "apps/mneme/model_source.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <utility>

#include "src/base/size32.h"

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
  EXPECT_EQ(refusal(v, "11"), "expected an integer from -2 to 10, found \"11\"");
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

TEST(Options, TheShortNameOfAHubIsSpelledOut) {
  CLI::App app;
  std::string text;
  app.add_subcommand("run")->add_option("-p,--prompt", text);
  const auto spelled = [&](std::vector<const char*> given) {
    std::string out;
    for (const char* word : with_long_hf(app, size32(given), given.data())) out += word + std::string(" ");
    return out;
  };
  EXPECT_EQ(spelled({"mneme", "run", "-hf", "a/b"}), "mneme run --hf-repo a/b ");
  EXPECT_EQ(spelled({"mneme", "run", "-p", "-hf", "-hf", "a/b"}), "mneme run -p -hf --hf-repo a/b ");
  EXPECT_EQ(spelled({"mneme", "run", "--prompt=x", "-hf", "a/b"}), "mneme run --prompt=x --hf-repo a/b ");
  EXPECT_EQ(spelled({"-hf", "run", "--", "-hf"}), "-hf run -- -hf ");
}

// Sets a variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(Options, EveryAliasHasAnEnvironmentVariable) {
  const auto parsed = [] {
    CLI::App app;
    int sequences = 1;
    bool caching = true;
    app.add_option("-p,--parallel,--max-num-seqs", sequences);
    app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", caching);
    name_environment(app);
    app.parse("");
    return std::pair(sequences, caching);
  };
  EXPECT_EQ(parsed(), std::pair(1, true));
  const Variable second("MNEME_MAX_NUM_SEQS", "7");
  EXPECT_EQ(parsed(), std::pair(7, true));
  const Variable first("MNEME_PARALLEL", "3"), off("MNEME_ENABLE_PREFIX_CACHING", "false");
  EXPECT_EQ(parsed(), std::pair(3, false));
  const Variable negation("MNEME_NO_ENABLE_PREFIX_CACHING", "true");
  EXPECT_EQ(parsed(), std::pair(3, false));
}

// As Kubernetes sets it for a service that is called "mneme".
TEST(Options, APortOfKubernetesIsIgnoredWithAWarning) {
  const auto parsed = [](const char* value) {
    const Variable variable("MNEME_PORT", value);
    CLI::App app;
    int port = 8000;
    app.add_subcommand("serve", "")->add_option("--port", port);
    name_environment(app);
    testing::internal::CaptureStderr();
    app.parse("serve");
    return std::pair(port, testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(parsed("9000"), std::pair(9000, std::string()));
  const auto [port, warning] = parsed("tcp://10.0.0.1:8000");
  EXPECT_EQ(port, 8000);
  EXPECT_NE(warning.find("warning: MNEME_PORT=\"tcp://10.0.0.1:8000\" is ignored"), std::string::npos) << warning;
}

}  // namespace
}  // namespace mneme::cli
