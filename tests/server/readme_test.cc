// The commands of README.md run as it prints them, but for the port.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/apps/mneme/program.h"

namespace mneme::server_test {
namespace {

using cli_test::run_program;
using cli_test::Running;
using cli_test::TempFolder;

std::string port_of(const std::string& line) {
  return line.substr(line.rfind(':') + 1, line.find('\n') - line.rfind(':') - 1);
}

// The commands in the code blocks of README.md, one a line; a backslash joins a line to the next.
std::vector<std::string> readme_commands() {
  std::ifstream readme(std::string(MNEME_SOURCE_DIR) + "/README.md");
  std::vector<std::string> commands;
  bool fenced = false, open = false;
  for (std::string line; std::getline(readme, line);) {
    if (line.starts_with("```")) {
      fenced = !fenced;
      continue;
    }
    if (!fenced) continue;
    if (open)
      commands.back() += " " + line;
    else
      commands.push_back(line);
    open = commands.back().ends_with("\\");
    if (open) commands.back().pop_back();
  }
  return commands;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

TEST(Readme, ItsCurlCommandsAreAnswered) {
  Running server({MNEME_BINARY, "serve", "-m", MNEME_MODEL_FILE, "--port", "0", "--quiet", "--no-pin"});
  ASSERT_TRUE(server.wait_for_output(30));
  const std::string port = port_of(server.output());
  int n = 0, streamed = 0, retrieved = 0;
  for (std::string line : readme_commands()) {
    if (!line.starts_with("curl ")) continue;
    ++n;
    line = replaced(line, "localhost:8000", "localhost:" + port) + " -sS --fail-with-body --max-time 60";
    const auto outcome = run_program({"/bin/bash", "-c", line});
    EXPECT_EQ(outcome.code, 0) << line << "\n" << outcome.out << outcome.err;
    const bool streams = line.find("\"stream\": true") != std::string::npos;
    EXPECT_EQ(outcome.out.find("data: [DONE]") != std::string::npos, streams) << outcome.out;
    const bool retrieves = line.find("kv_retrieval") != std::string::npos;
    EXPECT_EQ(outcome.out.find("\"kv_retrieval\"") != std::string::npos, retrieves) << outcome.out;
    EXPECT_FALSE(outcome.out.empty()) << line;
    streamed += streams;
    retrieved += retrieves;
  }
  EXPECT_GE(n, 3) << "README.md has lost its examples";
  EXPECT_GE(streamed, 1);
  EXPECT_GE(retrieved, 1);
  ::kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
}

// Those of the shipped model give the answer that is in the text. The others run in an empty folder: their options are
// right, so what stops them is the model or the document that is not in it.
TEST(Readme, ItsCommandsRun) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "minutes under sanitizers, and nothing that other tests do not run";
#endif
  const TempFolder empty;
  int shipped = 0, others = 0;
  for (const std::string& line : readme_commands()) {
    if (!line.starts_with("build/mneme ") || line.find(" models/smollm2") != std::string::npos) continue;
    const std::string command = replaced(line, "build/mneme", MNEME_BINARY);
    const bool ships = line.find("models/needle-27m-q8_0.gguf") != std::string::npos;
    const std::string folder = ships ? std::string(MNEME_SOURCE_DIR) : empty.path().string();
    const auto outcome = run_program({"/bin/bash", "-c", "cd '" + folder + "' && " + command});
    if (ships) {
      ++shipped;
      EXPECT_EQ(outcome.code, 0) << line << "\n" << outcome.err;
      EXPECT_EQ(outcome.out, "48213\n") << line;
    } else {
      ++others;
      EXPECT_EQ(outcome.code, 2) << line << "\n" << outcome.err;
      EXPECT_EQ(outcome.err.find("lists the options"), std::string::npos) << line << "\n" << outcome.err;
      EXPECT_TRUE(outcome.err.find("models/qwen3-8b") != std::string::npos ||
                  outcome.err.find("book.txt") != std::string::npos)
          << line << "\n"
          << outcome.err;
    }
  }
  EXPECT_GE(shipped, 2) << "README.md has lost its examples";
  EXPECT_GE(others, 4) << "README.md has lost its examples";
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
