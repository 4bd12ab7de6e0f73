// The examples of the README are run as they stand there, but for the port.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <sstream>

#include "tests/cli/program.h"

namespace mneme::server_test {
namespace {

using cli_test::run_program;
using cli_test::Running;

std::string port_of(const std::string& line) {
  return line.substr(line.rfind(':') + 1, line.find('\n') - line.rfind(':') - 1);
}

TEST(Readme, ItsCurlCommandsAreAnswered) {
  Running server({MNEME_BINARY, "serve", "-m", MNEME_MODEL_FILE, "--port", "0", "--quiet", "--no-pin"});
  ASSERT_TRUE(server.wait_for_output(30, 60));
  const std::string port = port_of(server.output());
  std::ifstream readme(std::string(MNEME_SOURCE_DIR) + "/README.md");
  int n = 0;
  for (std::string line; std::getline(readme, line);) {
    if (!line.starts_with("curl ")) continue;
    ++n;
    for (std::size_t at; (at = line.find("localhost:8000")) != std::string::npos;)
      line.replace(at, 14, "localhost:" + port);
    const auto outcome = run_program({"/bin/bash", "-c", line + " -sS --fail-with-body --max-time 60"});
    EXPECT_EQ(outcome.code, 0) << line << "\n" << outcome.out << outcome.err;
    const bool streams = line.find("\"stream\": true") != std::string::npos;
    EXPECT_EQ(outcome.out.find("data: [DONE]") != std::string::npos, streams) << outcome.out;
    const bool retrieves = line.find("kv_retrieval") != std::string::npos;
    EXPECT_EQ(outcome.out.find("\"kv_retrieval\"") != std::string::npos, retrieves) << outcome.out;
    const bool schema = line.find("json_schema") != std::string::npos;
    EXPECT_EQ(outcome.out.find("\\\"found\\\"") != std::string::npos, schema) << outcome.out;
    EXPECT_FALSE(outcome.out.empty()) << line;
  }
  EXPECT_GE(n, 6) << "the README has lost its examples";
  ::kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
}

TEST(Readme, TheServerRefusesWhatItCannotDo) {
  const auto outcome =
      run_program({MNEME_BINARY, "serve", "-m", MNEME_MODEL_FILE, "--port", "0", "--slot-save-path", "/nowhere"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("/nowhere"), std::string::npos);
  for (const char* port : {"99999", "-1", "http"}) {
    const auto refused = run_program({MNEME_BINARY, "serve", "-m", MNEME_MODEL_FILE, "--port", port});
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find("from 0 to 65535"), std::string::npos) << refused.err;
  }
}

}  // namespace
}  // namespace mneme::server_test
