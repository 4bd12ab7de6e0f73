// The installed library works for a project that knows nothing of this one: examples/ is built against it and run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/apps/mneme/program.h"

namespace mneme::cli_test {
namespace {

namespace fs = std::filesystem;

// Installs the library and builds examples/ against the copy.
class Install : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string prefix = (folder_.path() / "installed").string();
    build_ = (folder_.path() / "build").string();
    const Outcome installed =
        run_program({MNEME_CMAKE, "--install", MNEME_BUILD_DIR, "--prefix", prefix, "--component", "mneme"});
    ASSERT_EQ(installed.code, 0) << installed.err;
    for (const char* header : {"error", "mneme", "options", "progress", "recipe", "scores", "server", "stats"})
      EXPECT_TRUE(fs::exists(fs::path(prefix) / "include/mneme" / (std::string(header) + ".h"))) << header;
    EXPECT_EQ(run_program({prefix + "/bin/mneme", "--version"}).code, 0);
    for (const char* companion : {"serve", "eval", "bench", "doctor", "plan"})
      EXPECT_EQ(run_program({prefix + "/bin/mneme", companion, "--help"}).code, 0) << companion;

    // A user's own warnings are the strict ones: the public headers must pass them.
    const std::string flags =
        std::string("-Wall -Wextra -Werror -Wno-missing-field-initializers ") + MNEME_SANITIZE_FLAG;
    const Outcome configured =
        run_program({MNEME_CMAKE, "-S", MNEME_SOURCE_DIR "/examples", "-B", build_, "-DCMAKE_PREFIX_PATH=" + prefix,
                     "-DCMAKE_CXX_COMPILER=" MNEME_CXX, "-DCMAKE_CXX_FLAGS=" + flags});
    ASSERT_EQ(configured.code, 0) << configured.err;
    const Outcome built = run_program({MNEME_CMAKE, "--build", build_});
    ASSERT_EQ(built.code, 0) << built.out << built.err;
    document_ = folder_.write(
        "d.txt", "It rained.\nThe secret number of silver-harbour is 48213.\n" + lines_of_rain() + "It rained on.");
  }
  static std::string lines_of_rain() {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "The rain fell upon the roofs of the town, and nobody spoke.\n";
    return text;
  }
  std::string example(const std::string& name) const { return build_ + "/" + name; }

  void ask_answers_each_line() const;
  void compare_asks_under_two_methods() const;
  void custom_recipe_finds_the_number() const;
  void server_answers_and_stops_on_a_signal() const;

  const TempFolder folder_;
  std::string build_, document_;
};

constexpr const char* kQuestion = "What is the secret number of silver-harbour?";

void Install::ask_answers_each_line() const {
  const Outcome answered =
      run_program({example("ask"), MNEME_MODEL_FILE, document_}, {.text = std::string(kQuestion) + "\n"});
  EXPECT_EQ(answered.code, 0) << answered.err;
  EXPECT_EQ(answered.out, "48213\n");
  const Outcome refused = run_program({example("ask"), document_, document_});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, ::testing::StartsWith("ask: "));
}

void Install::compare_asks_under_two_methods() const {
  const Outcome compared =
      run_program({example("compare"), MNEME_MODEL_FILE, document_, kQuestion, "full", "window:budget=64,sink=4"});
  EXPECT_EQ(compared.code, 0) << compared.err;
  EXPECT_THAT(compared.out, ::testing::StartsWith("full: 48213\nwindow:budget=64,sink=4: "));
  EXPECT_THAT(compared.out.substr(12), ::testing::Not(::testing::HasSubstr("48213"))) << "64 tokens do not hold it";
  EXPECT_THAT(compared.err, ::testing::HasSubstr("log-probability"));
  const Outcome refused = run_program({example("compare"), MNEME_MODEL_FILE, document_, kQuestion, "full", "qest"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, ::testing::HasSubstr("no KV method is called 'qest'"));
}

void Install::custom_recipe_finds_the_number() const {
  const Outcome answered = run_program({example("custom_recipe"), MNEME_MODEL_FILE, document_, kQuestion});
  EXPECT_EQ(answered.code, 0) << answered.err;
  EXPECT_EQ(answered.out, "48213\n");
  EXPECT_THAT(answered.err, ::testing::StartsWith("quest:budget=256,"));
  EXPECT_THAT(answered.err, ::testing::HasSubstr("index=one_bit"));
  EXPECT_THAT(answered.err, ::testing::HasSubstr("gate=mass"));
}

void Install::server_answers_and_stops_on_a_signal() const {
  const Outcome asked = run_program(
      {"/bin/sh", "-c",
       "'" + example("server") + "' '" MNEME_MODEL_FILE "' 0 > '" + folder_.path().string() +
           "/line' & pid=$!\n"
           "for i in $(seq 600); do url=$(sed -n 's/^listening on //p' '" +
           folder_.path().string() +
           "/line'); "
           "[ -n \"$url\" ] && break; sleep 0.1; done\n"
           "curl -sf \"$url/v1/models\"; curl -sf \"$url/v1/completions\" -H 'Content-Type: application/json' "
           "-d '{\"prompt\": \"It rained\", \"max_tokens\": 3, \"ignore_eos\": true}'\n"
           "kill -TERM $pid; wait $pid; echo \"code $?\""});
  EXPECT_EQ(asked.code, 0) << asked.err;
  EXPECT_THAT(asked.out, ::testing::HasSubstr("needle-27m-q8_0"));
  EXPECT_THAT(asked.out, ::testing::HasSubstr("\"completion_tokens\":3"));
  EXPECT_THAT(asked.out, ::testing::EndsWith("code 0\n"));
  EXPECT_EQ(run_program({example("server"), document_}).code, 2);
}

// One test: building the examples takes longer than running them.
TEST_F(Install, EveryExampleBuildsAgainstTheCopyAndRuns) {
  ask_answers_each_line();
  compare_asks_under_two_methods();
  custom_recipe_finds_the_number();
  server_answers_and_stops_on_a_signal();
}

}  // namespace
}  // namespace mneme::cli_test
