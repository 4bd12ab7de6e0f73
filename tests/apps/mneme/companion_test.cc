// mneme-doctor, mneme-serve, mneme-eval and mneme-bench: programs beside mneme, which runs them for its subcommands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/apps/mneme/program.h"

namespace mneme::cli_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A copy of mneme in bin/ of a folder of its own, without companions.
class Companion : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_.path() / "bin");
    fs::copy_file(MNEME_BINARY, program());
  }
  fs::path program() const { return folder_.path() / "bin" / "mneme"; }
  // A script that says where it is and what it was given.
  void write_script(const fs::path& path, const std::string& text) const {
    fs::create_directories((folder_.path() / path).parent_path());
    const std::string script = folder_.write(path.string(), "#!/bin/sh\necho " + text + " \"$@\"\nexit 7\n");
    fs::permissions(script, fs::perms::owner_all);
  }

  const TempFolder folder_;
};

TEST_F(Companion, IsBesideTheProgramOfTheBuild) {
  const Outcome serve = mneme({"serve", "--help"}), eval = mneme({"eval", "--help"}),
                bench = mneme({"bench", "decode", "--help"});
  EXPECT_EQ(serve.code, 0) << serve.err;
  EXPECT_EQ(serve.err, "");
  EXPECT_THAT(serve.out, HasSubstr("mneme serve [OPTIONS]"));
  EXPECT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(eval.err, "");
  EXPECT_THAT(eval.out, HasSubstr("mneme eval [OPTIONS]"));
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("mneme bench decode [OPTIONS]"));
  for (const std::string command : {"doctor", "plan"}) {
    const Outcome help = mneme({command, "--help"});
    EXPECT_EQ(help.code, 0) << help.err;
    EXPECT_EQ(help.err, "");
    EXPECT_THAT(help.out, HasSubstr("mneme " + command + " [OPTIONS]"));
  }
}

TEST_F(Companion, IsListedByTheHelpOfTheProgram) {
  const std::string help = mneme({"--help"}).out;
  for (const std::string command : {"serve", "eval", "bench", "doctor", "plan"})
    EXPECT_THAT(help, HasSubstr("  " + command + " "));
}

TEST_F(Companion, TakesTheArgumentsAndGivesTheExitCode) {
  write_script("bin/mneme-serve", "server");
  EXPECT_EQ(run_program({program().string(), "serve", "--port", "0"}).out, "server --port 0\n");
  write_script("bin/mneme-eval", "beside");
  const Outcome ran = run_program({program().string(), "eval", "--tasks", "a b", "--help"});
  EXPECT_EQ(ran.out, "beside --tasks a b --help\n");
  EXPECT_EQ(ran.code, 7);
  write_script("bin/mneme-doctor", "two");
  EXPECT_EQ(run_program({program().string(), "doctor", "--json"}).out, "two --json\n");
  EXPECT_EQ(run_program({program().string(), "plan", "--json"}).out, "two plan --json\n");
}

TEST_F(Companion, BesideTheProgramComesBeforeLibexec) {
  write_script("libexec/mneme/mneme-bench", "libexec");
  EXPECT_EQ(run_program({program().string(), "bench", "decode"}).out, "libexec decode\n");
  write_script("bin/mneme-bench", "beside");
  EXPECT_EQ(run_program({program().string(), "bench", "decode"}).out, "beside decode\n");
}

TEST_F(Companion, ThatIsMissingSaysHowToGetIt) {
  const Outcome installed = run_program({program().string(), "eval", "--help"});
  EXPECT_EQ(installed.code, 2);
  EXPECT_THAT(installed.err,
              StartsWith("mneme: error: eval: it is in a program of its own, mneme-eval, which is neither " +
                         (folder_.path() / "bin/mneme-eval").string() + " nor " +
                         (folder_.path() / "libexec/mneme/mneme-eval").string()));
  EXPECT_THAT(installed.err, HasSubstr("cmake --install"));
  folder_.write("bin/CMakeCache.txt", "");
  for (const std::string command : {"serve", "eval", "bench", "doctor"}) {
    const Outcome built = run_program({program().string(), command});
    EXPECT_EQ(built.code, 2);
    EXPECT_THAT(built.err, HasSubstr("build it: cmake --build " + (folder_.path() / "bin").string() +
                                     " --target mneme_" + command + "\n"));
  }
  EXPECT_THAT(run_program({program().string(), "plan"}).err,
              AllOf(StartsWith("mneme: error: plan: it is in a program of its own, mneme-doctor, "),
                    HasSubstr(" --target mneme_doctor\n")));
}

TEST_F(Companion, OfAnotherRevisionWarns) {
  const fs::path eval = fs::path(MNEME_BINARY).parent_path() / "mneme-eval";
  const Outcome ran = run_program({eval.string(), "--help"}, {.env = {{"MNEME_PROGRAM_REVISION", "0.0.1 (0123abc)"}}});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.err, StartsWith("mneme: warning: this program is "));
  EXPECT_THAT(ran.err, HasSubstr("mneme is 0.0.1 (0123abc): build both again"));
  EXPECT_EQ(run_program({eval.string(), "--help"}).err, "");
}

}  // namespace
}  // namespace mneme::cli_test
