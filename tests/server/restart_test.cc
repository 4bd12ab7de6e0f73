// `mneme serve --kv-disk` is killed without warning and started again: answers are right, and pages that reached the
// disk are not computed again.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "tests/apps/mneme/program.h"
#include "tests/progress.h"

namespace mneme::server_test {
namespace {

using cli_test::run_program;
using cli_test::Running;
using cli_test::TempFolder;

// 6 KB of the demo text around its secret number.
std::string document() {
  std::ifstream file(std::string(MNEME_SOURCE_DIR) + "/demo/harbour.txt");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  return text.substr(text.find("The secret number of silver-harbour") - 3000, 6000);
}

std::string escaped(const std::string& text) {
  std::string json;
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += c == '\n' ? "\\n" : std::string(1, c);
  }
  return json;
}

struct Case {
  const char *name, *type;
  std::vector<std::string> more = {};  // options
  bool spills = false;                 // memory for a third of the document
};

class DiskServer {
 public:
  DiskServer(const TempFolder& folder, const Case& c) : server_(command(folder, c)) {
    started_ = server_.wait_for_output(30);
    const std::string line = server_.output();
    port_ = line.substr(line.rfind(':') + 1, line.find('\n') - line.rfind(':') - 1);
  }
  bool started() const { return started_; }
  void kill(int signal) { ::kill(server_.pid(), signal); }
  int wait() { return server_.wait().code; }

  std::string ask(const TempFolder& folder, const std::string& question) const {
    const std::string body = R"({"messages": [{"role": "user", "content": ")" + escaped(document()) + "\\n\\n" +
                             escaped(question) + R"("}], "max_tokens": 8, "temperature": 0})";
    return curl("/v1/chat/completions -H 'Content-Type: application/json' -d @" + folder.write("body.json", body));
  }
  // The value of a metric; -1 where the server has none.
  double metric(const std::string& name) const {
    const std::string page = curl("/metrics");
    const auto at = page.find("\nmneme:" + name);
    return at == std::string::npos ? -1 : std::stod(page.substr(page.find(' ', at + 1)));
  }

 private:
  static std::vector<std::string> command(const TempFolder& folder, const Case& c) {
    std::vector<std::string> all = {MNEME_BINARY,
                                    "serve",
                                    "-m",
                                    MNEME_MODEL_FILE,
                                    "--port",
                                    "0",
                                    "--quiet",
                                    "--no-pin",
                                    "-c",
                                    "8192",
                                    "--kv-disk",
                                    (folder.path() / "kv").string(),
                                    "--kv-disk-gib",
                                    "1",
                                    "--kv-cache-dtype",
                                    c.type};
    all.insert(all.end(), c.more.begin(), c.more.end());
    if (c.spills)
      all.insert(all.end(), {"--kv-offloading-size", "0.002", "--kv-spill", (folder.path() / "spill").string(),
                             "--kv-spill-gib", "0.05"});
    return all;
  }
  std::string curl(const std::string& rest) const {
    return run_program({"/bin/bash", "-c", "curl -sS --max-time 120 http://localhost:" + port_ + rest}).out;
  }
  Running server_;
  bool started_ = false;
  std::string port_;
};

// Reads the document, and kills the server once `pages` pages are on the disk.
void read_and_kill(const TempFolder& folder, const Case& c, double pages) {
  DiskServer server(folder, c);
  ASSERT_TRUE(server.started());
  const std::string answer = server.ask(folder, "What is the secret number of silver-harbour?");
  EXPECT_NE(answer.find("48213"), std::string::npos) << answer;
  wait_until([&] { return server.metric("kv_disk_pages_written_total") >= pages; }, std::chrono::milliseconds(10));
  EXPECT_GE(server.metric("kv_disk_pages_written_total"), pages);
  server.kill(SIGKILL);
  EXPECT_EQ(server.wait(), 128 + SIGKILL);
}

class Restart : public ::testing::TestWithParam<Case> {};

TEST_P(Restart, PagesOnTheDiskSurviveAKill) {
  const TempFolder folder;
  constexpr double kPages = 30;  // of some 50
  ASSERT_NO_FATAL_FAILURE(read_and_kill(folder, GetParam(), kPages));
  DiskServer server(folder, GetParam());
  ASSERT_TRUE(server.started());
  const std::string answer = server.ask(folder, "What is the secret number of silver-harbour?");
  EXPECT_NE(answer.find("48213"), std::string::npos) << answer;
  EXPECT_GE(server.metric("kv_disk_pages_read_total"), kPages - 8) << "at most what was being written is missing";
  EXPECT_EQ(server.metric("kv_disk_failed_reads_total"), 0);
  if (GetParam().spills) {
    EXPECT_GT(server.metric("kv_spill_evicted_bytes_total"), 1 << 20);
    EXPECT_LE(server.metric("kv_spill_resident_bytes"), 4 << 20);
  }
  server.kill(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

// Wherever the kill comes, what is found afterwards is right.
TEST_P(Restart, AKillWhileItWritesLosesNothingElse) {
  const TempFolder folder;
  for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(read_and_kill(folder, GetParam(), 0));
}

const Case kCases[] = {{"bf16", "bf16"},
                       {"int8", "int8"},
                       {"ranks", "bf16", {"--tensor-parallel-size", "2"}},
                       {"stages", "bf16", {"--pipeline-parallel-size", "2"}},
                       {"spill", "bf16", {}, true}};

INSTANTIATE_TEST_SUITE_P(All, Restart, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mneme::server_test
