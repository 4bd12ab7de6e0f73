// The installed library works for a project that knows nothing of this one: examples/ is built against it and run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/program.h"

namespace mneme::cli_test {
namespace {

namespace fs = std::filesystem;

TEST(Install, AProjectFindsThePackageAndUsesTheLibrary) {
  const TempFolder folder;
  const std::string prefix = (folder.path() / "installed").string(), build = (folder.path() / "build").string();
  const Outcome installed =
      run_program({MNEME_CMAKE, "--install", MNEME_BUILD_DIR, "--prefix", prefix, "--component", "mneme"});
  ASSERT_EQ(installed.code, 0) << installed.err;
  EXPECT_TRUE(fs::exists(fs::path(prefix) / "include/mneme/mneme.h"));
  EXPECT_EQ(run_program({prefix + "/bin/mneme", "--version"}).code, 0);

  // A user's own warnings are the strict ones: the public headers must pass them.
  const std::string flags = std::string("-Wall -Wextra -Werror -Wno-missing-field-initializers ") + MNEME_SANITIZE_FLAG;
  const Outcome configured =
      run_program({MNEME_CMAKE, "-S", MNEME_SOURCE_DIR "/examples", "-B", build, "-DCMAKE_PREFIX_PATH=" + prefix,
                   "-DCMAKE_CXX_COMPILER=" MNEME_CXX, "-DCMAKE_CXX_FLAGS=" + flags});
  ASSERT_EQ(configured.code, 0) << configured.err;
  const Outcome built = run_program({MNEME_CMAKE, "--build", build});
  ASSERT_EQ(built.code, 0) << built.out << built.err;

  const std::string document =
      folder.write("d.txt", "It rained.\nThe secret number of silver-harbour is 48213.\nIt rained on.");
  const Outcome answered = run_program({build + "/ask", MNEME_MODEL_FILE, document},
                                       {.text = "What is the secret number of silver-harbour?\n"});
  EXPECT_EQ(answered.code, 0) << answered.err;
  EXPECT_EQ(answered.out, "48213\n");
  const Outcome refused = run_program({build + "/ask", document, document});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, ::testing::StartsWith("ask: "));
}

}  // namespace
}  // namespace mneme::cli_test
